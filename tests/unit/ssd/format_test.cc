// The format as it was when it was drawn: golden/segment.txt has the bytes of a small segment. A change that this test sees makes every
// store that exists unreadable: it needs a new kFormatVersion. The seals there were checked with Python's hmac, the checksums with
// the xxhash package of PyPI.
#include "storage/ssd/format.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

constexpr uint32_t kSegment = 35;
constexpr uint64_t kGoldenUnits = 7;

// Rows of 16 bytes that aren't all zero.
std::string Dump(const std::byte* bytes, uint64_t size) {
  std::string out;
  for (uint64_t at = 0; at < size; at += 16) {
    std::string row;
    bool zero = true;
    for (uint64_t i = at; i < at + 16; ++i) {
      zero = zero && bytes[i] == std::byte{0};
      absl::StrAppendFormat(&row, "%02x", static_cast<unsigned>(bytes[i]));
    }
    if (!zero) absl::StrAppendFormat(&out, "%06x %s\n", at, row);
  }
  return out;
}

TEST_CASE("The format is what it was") {
  AlignedBytes file(kUnit * kGoldenUnits);
  const SegmentHeader segment =
      MakeSegmentHeader(DigestOf<StoreId>(0x0102030405060708), kSegment, kGoldenUnits, 9, SecretOf(0xab));
  Sealer sealer;
  PutSegmentHeader(segment, std::span<std::byte, kUnit.value>(file.data(), kUnit.value));
  std::byte* at = file.data() + kUnit.value;

  RecordHeader space{};
  space.kind = RecordKind::kSpace;
  space.sequence = 1;
  space.space = DigestOf<SpaceDigest>(77);
  space.runs = 1;
  space.payload_bytes = space.raw_bytes = 5;
  std::memcpy(at + kHeaderBytes.value, "space", 5);
  SealRecord(at, space, segment, {kSegment, 1}, Checksums::kCompute, &sealer);
  at += 2 * kUnit.value;

  const RecordHeader shard = ShardHeader(2, 3, Bytes{100});
  FillPayload(at, 2, shard.payload_bytes);
  SealRecord(at, shard, segment, {kSegment, 3}, Checksums::kCompute, &sealer);
  at += 2 * kUnit.value;

  RecordHeader clear{};
  clear.kind = RecordKind::kClear;
  clear.sequence = 3;
  clear.space = space.space;
  SealRecord(at, clear, segment, {kSegment, 5}, Checksums::kCompute, &sealer);
  PutSegmentHeader(segment, std::span<std::byte, kUnit.value>(file.data() + (kGoldenUnits - 1) * kUnit.value, kUnit.value));

  std::ifstream golden(KVIST_GOLDEN_DIR "/segment.txt");
  std::stringstream text;
  text << golden.rdbuf();
  CHECK(Dump(file.data(), file.size().value) == text.str());
}

TEST_CASE("UnitsFor counts the header and the padded payload") {
  CHECK(UnitsFor({0}) == 1);
  CHECK(UnitsFor({1}) == 2);
  CHECK(UnitsFor(kUnit) == 2);
  CHECK(UnitsFor(kUnit + Bytes{1}) == 3);
  CHECK(UnitsFor(kPayloadMax) == UINT32_MAX);
}

}  // namespace
}  // namespace kvist::ssd
