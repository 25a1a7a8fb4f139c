// Encoded shards that aren't as they were written: by accident, and by somebody who puts the checksums right.
#include <catch2/catch.hpp>

#include "storage/codec/anchored.h"
#include "storage/codec/codec.h"
#include "storage/codec/format.h"
#include "storage/codec/twins.h"
#include "tests/support/codec_forgery.h"
#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

struct Written {
  Shape shape;
  Payload encoded;
};

// Of the first matrix of a shard in int4: what is behind the float of its part.
uint32_t OutliersIn(const Written& written) {
  uint32_t outliers = 0;
  std::memcpy(&outliers, written.encoded.data() + PartsAt(written.shape.matrices()) + sizeof(float), sizeof outliers);
  return outliers;
}

// Small ones of each method, compressed and as they are.
std::vector<Written> AllKinds() {
  std::mt19937_64 random(12);
  std::vector<Written> all;
  for (const Method method : kMethods) {
    for (const Element element : {Element::kBf16, Element::kFp16}) {
      const Shape shape{.element = element, .layers = 2, .segments = 2, .keys = 1, .tokens = 70, .channels = 5};
      Parameters parameters = Parameters::Of(method);
      if (method == Method::kInt4)
        parameters.outliers = 4096;  // so that few values have some: positions say where Decode writes
      all.push_back({shape, EncodeAll(method, parameters, shape, Gaussian(shape, &random))});
      if (method == Method::kInt4) REQUIRE(OutliersIn(all.back()) > 0);
    }
  }
  const Shape said{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 70, .channels = 9};
  std::vector<uint32_t> tokens(said.tokens);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % 20);
  all.push_back({said, EncodeAll(Method::kStrongest, said, OfTokens(said, tokens, &random))});  // with twins
  const Shape any{.element = Element::kBf16, .layers = 2, .tokens = 7, .channels = 9};
  all.push_back({any, EncodeAll(Method::kLossless, any, AnyBytes(any, &random))});
  const Shape opaque{.layers = 3, .channels = 100};
  all.push_back({opaque, EncodeAll(Method::kLossless, opaque, AnyBytes(opaque, &random))});
  all.push_back({opaque, EncodeAll(Method::kLossless, opaque, Payload(300, std::byte{4}))});
  return all;
}

bool IsLost(const Payload& encoded, const Shape& shape) {
  Payload out(shape.bytes().value);
  return Decode(encoded, shape, out).code() == absl::StatusCode::kDataLoss;
}

// Of another version of kvist, which reads it.
bool IsOfAnother(const Payload& encoded, const Shape& shape) {
  Payload out(shape.bytes().value);
  return Decode(encoded, shape, out).code() == absl::StatusCode::kFailedPrecondition;
}

TEST_CASE("Decode finds each changed byte") {
  for (const Written& written : AllKinds()) {
    REQUIRE(!IsLost(written.encoded, written.shape));
    size_t missed = 0;
    for (size_t at = 0; at < written.encoded.size(); ++at) {
      for (const auto change : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
        Payload changed = written.encoded;
        changed[at] ^= change;
        const bool other_version = at >= offsetof(Header, version) && at < offsetof(Header, method);
        missed += (other_version ? IsOfAnother(changed, written.shape) : IsLost(changed, written.shape)) ? 0 : 1;
      }
    }
    CHECK(missed == 0);
  }
}

TEST_CASE("Decode takes a method that it doesn't know for another version's, and for no damage") {
  for (const Written& written : AllKinds()) {
    Payload later = written.encoded;
    later[offsetof(Header, method)] = std::byte{200};
    CHECK(IsLost(later, written.shape));
    ForgeChecksums(later);
    CHECK(IsOfAnother(later, written.shape));
    CHECK(absl::IsFailedPrecondition(Describe(later).status()));
  }
}

TEST_CASE("Decode finds each truncation and each byte too much") {
  for (const Written& written : AllKinds()) {
    size_t missed = 0;
    for (size_t length = 0; length < written.encoded.size(); ++length) {
      const Payload cut(written.encoded.begin(), written.encoded.begin() + static_cast<std::ptrdiff_t>(length));
      missed += IsLost(cut, written.shape) ? 0 : 1;
    }
    CHECK(missed == 0);
    Payload longer = written.encoded;
    longer.push_back(std::byte{0});
    CHECK(IsLost(longer, written.shape));
  }
}

TEST_CASE("Decode refuses a shard of another shape") {
  for (const Written& written : AllKinds()) {
    Shape other = written.shape;
    std::swap(other.tokens, other.channels);  // as many bytes
    if (other != written.shape) CHECK(IsLost(written.encoded, other));
    other = written.shape;
    other.keys = 1 - other.keys;
    CHECK(IsLost(written.encoded, other));
  }
}

TEST_CASE("Decode refuses parts that have changed places") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .tokens = 16, .channels = 16};
  std::mt19937_64 random(1);
  Payload encoded = EncodeAll(Method::kInt8, shape, Gaussian(shape, &random));
  const size_t part = (encoded.size() - PartsAt(2)) / 2;
  std::byte* const parts = encoded.data() + PartsAt(2);
  std::swap_ranges(parts, parts + part, parts + part);
  std::byte* const entries = encoded.data() + sizeof(Header);
  std::swap_ranges(entries, entries + sizeof(PartEntry), entries + sizeof(PartEntry));
  Header header{};
  std::memcpy(&header, encoded.data(), sizeof header);
  header.directory = XXH3_64bits(entries, 2 * sizeof(PartEntry));
  header.checksum = XXH3_64bits(&header, offsetof(Header, checksum));
  std::memcpy(encoded.data(), &header, sizeof header);
  CHECK(IsLost(encoded, shape));  // all checksums but the parts' own, which know their matrix, are right
}

// What a forger gets past the checksums is refused or gives some values; AddressSanitizer sees whether anything else is touched.
TEST_CASE("Decode touches nothing outside when a forger has put the checksums right") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  size_t refused = 0, tried = 0;
  for (const Written& written : AllKinds()) {
    for (int round = 0; round < 2500; ++round, ++tried) {
      Payload forged = written.encoded;
      // Mostly where the lengths are: the header, the directory, the first part's head.
      const size_t area = round % 2 == 0 ? std::min<size_t>(forged.size(), sizeof(Header) + 16 * 4 + 64) : forged.size();
      const size_t changes = 1 + random() % 3;
      for (size_t i = 0; i < changes; ++i) forged[random() % area] = static_cast<std::byte>(random());
      if (random() % 4 == 0) forged.resize(random() % (forged.size() + 1));
      forged.shrink_to_fit();
      ForgeChecksums(forged);
      Payload out(written.shape.bytes().value);
      const absl::Status status = Decode(forged, written.shape, out);
      if (!status.ok() && !absl::IsDataLoss(status) && !absl::IsFailedPrecondition(status)) FAIL(status.ToString());
      refused += status.ok() ? 0 : 1;
    }
  }
  CHECK(refused > tried / 10);
  CHECK(refused < tried);
}

TEST_CASE("Decode refuses forged lengths and shapes") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 70, .channels = 5};
  std::mt19937_64 random(1);
  for (const Method method : kMethods) {
    const Payload written = EncodeAll(method, shape, Gaussian(shape, &random));
    for (const size_t at :
         {offsetof(Header, pages), offsetof(Header, layers), offsetof(Header, segments), offsetof(Header, tiles),
          offsetof(Header, tokens), offsetof(Header, channels), offsetof(Header, decoded), offsetof(Header, encoded),
          sizeof(Header) + offsetof(PartEntry, bytes), sizeof(Header) + offsetof(PartEntry, reserved)}) {
      for (const uint32_t value : {uint32_t{0}, uint32_t{1} << 20, uint32_t{1} << 31, UINT32_MAX}) {
        Payload forged = written;
        if (std::memcmp(forged.data() + at, &value, sizeof value) == 0) continue;
        std::memcpy(forged.data() + at, &value, sizeof value);
        ForgeChecksums(forged);
        CHECK(IsLost(forged, shape));
      }
    }
  }
}

TEST_CASE("Describe refuses a forged length that no shard of the shape can have") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 70, .channels = 5};
  std::mt19937_64 random(2);
  for (const Method method : kMethods) {
    Payload forged = EncodeAll(method, shape, Gaussian(shape, &random));
    const uint64_t bound = EncodedBound(method, Parameters::Of(method), shape)->value;
    for (const uint64_t length : {PartsAt(shape.matrices()), bound, bound + 1, PartsAt(shape.matrices()) - 1, UINT64_MAX}) {
      std::memcpy(forged.data() + offsetof(Header, encoded), &length, sizeof length);
      ForgeChecksums(forged);
      const auto found = Describe(forged);
      INFO("method " << NameOf(method) << " length " << length);
      CHECK(found.ok() == (length >= PartsAt(shape.matrices()) && length <= bound));
      CHECK((found.ok() || found.status().code() == absl::StatusCode::kDataLoss));
    }
  }
}

// The kinds of tokens lie behind the sides, as they are when they can't be made shorter: at 0 1 2 .. here, and then again.
TEST_CASE("Decode refuses kinds of tokens that aren't numbered in their order, and twins without kinds") {
  const Shape shape{.element = Element::kBf16, .segments = 1, .tokens = 24, .channels = 64};
  std::vector<uint32_t> tokens(shape.tokens);
  for (uint32_t t = 0; t < shape.tokens; ++t) tokens[t] = t % 12;
  std::mt19937_64 random(9);
  const Payload written = EncodeAll(Method::kStrongest, shape, OfTokens(shape, tokens, &random));
  const size_t part = PartsAt(1);
  AnchoredPart head{};
  std::memcpy(&head, written.data() + part, sizeof head);
  REQUIRE(head.kind_bytes > 0);
  for (const uint32_t kind_bytes : {0U, head.kind_bytes - 1, head.kind_bytes + 1, 2 * shape.tokens, UINT32_MAX}) {
    Payload forged = written;
    if (kind_bytes == head.kind_bytes) continue;
    std::memcpy(forged.data() + part + offsetof(AnchoredPart, kind_bytes), &kind_bytes, sizeof kind_bytes);
    ForgeChecksums(forged);
    INFO("kind_bytes " << kind_bytes << " of " << head.kind_bytes);
    CHECK(IsLost(forged, shape));
  }
  std::vector<uint32_t> twins;
  CHECK(FindTwins(std::vector<Kind>{0, 1, 0, 2, 1}, &twins));
  CHECK(twins == std::vector<uint32_t>{kNoTwin, kNoTwin, 0, kNoTwin, 1});
  CHECK_FALSE(FindTwins(std::vector<Kind>{0, 2, 1}, &twins));
  CHECK_FALSE(FindTwins(std::vector<Kind>{1}, &twins));
}

TEST_CASE("Decode refuses outliers that lie outside or out of order") {
  const Shape shape{.element = Element::kBf16, .tokens = 64, .channels = 64};
  std::mt19937_64 random(8);
  const Payload written = EncodeAll(Method::kInt4, shape, Gaussian(shape, &random));
  const size_t outliers = 64 * 64 * 32 / 65536;
  REQUIRE(outliers == 2);
  const size_t positions = written.size() - outliers * 6;
  const auto forged_with = [&](uint32_t first, uint32_t second) {
    Payload forged = written;
    std::memcpy(forged.data() + positions, &first, sizeof first);
    std::memcpy(forged.data() + positions + 4, &second, sizeof second);
    ForgeChecksums(forged);
    return forged;
  };
  CHECK(!IsLost(forged_with(0, 4095), shape));
  CHECK(IsLost(forged_with(4095, 0), shape));
  CHECK(IsLost(forged_with(7, 7), shape));
  CHECK(IsLost(forged_with(0, 4096), shape));
  CHECK(IsLost(forged_with(0, UINT32_MAX), shape));
}

}  // namespace
}  // namespace kvist::codec
