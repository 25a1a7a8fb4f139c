// The format as it was when it was drawn: golden/encoded.txt has a small shard encoded by each method, and what it decodes to. A change that
// this test sees makes every encoded shard that exists unreadable, or gives it other values: it needs a new kFormatVersion.
// int8, int4, fp8 and all checksums there were decoded with a second program, in Python with numpy and the xxhash package of PyPI.
#include "storage/codec/format.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

constexpr Shape kGolden{.element = Element::kBf16, .layers = 1, .segments = 2, .keys = 1, .tokens = 65, .channels = 5};

// No generator of the library's: others may draw other numbers.
Payload GoldenPayload() {
  Payload payload(kGolden.bytes().value);
  uint64_t state = 1;
  for (uint64_t i = 0; i < payload.size() / 2; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const auto spread = static_cast<int32_t>(state >> 40) - (1 << 23);  // +-2^23
    PutValue(kGolden.element, &payload, i,
             static_cast<float>(spread) * 0x1p-23F * static_cast<float>(1 + i % kGolden.channels));
  }
  return payload;
}

std::map<std::string, std::string> Lines(const std::string& path) {
  std::map<std::string, std::string> lines;
  std::ifstream file(path);
  for (std::string name, text; file >> name >> text;) lines[name] = absl::HexStringToBytes(text);
  return lines;
}

std::string Text(const Payload& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
Payload BytesOfText(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

TEST_CASE("The format is what it was") {
  const std::map<std::string, std::string> golden = Lines(KVIST_GOLDEN_DIR "/encoded.txt");
  const Payload payload = GoldenPayload();
  CHECK(golden.size() == 2 * std::size(kMethods));
  for (const Method method : kMethods) {
    const std::string name(NameOf(method));
    INFO("method " << name);
    REQUIRE(golden.count(name) == 1);
    CHECK(Text(DecodeAll(kGolden, BytesOfText(golden.at(name)))) == golden.at(absl::StrCat(name, "-decoded")));
    // Another zstd may find fewer bytes for the same.
    if (method != Method::kLossless && method != Method::kStrongest)
      CHECK(Text(EncodeAll(method, kGolden, payload)) == golden.at(name));
  }
  CHECK(golden.at("lossless-decoded") == Text(payload));
}

}  // namespace
}  // namespace kvist::codec
