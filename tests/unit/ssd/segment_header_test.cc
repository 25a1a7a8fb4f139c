#include "storage/ssd/segment_header.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

using Unit = std::array<std::byte, kUnit.value>;
const StoreId kStore = DigestOf<StoreId>(1);

TEST_CASE("CheckSegmentHeader tells a segment's own header from everything else") {
  const SegmentHeader header = MakeSegmentHeader(kStore, 16, 65536, 3, SecretOf(5));
  Unit unit;
  PutSegmentHeader(header, unit);
  SegmentHeader found{};
  REQUIRE(CheckSegmentHeader(unit, kStore, 16, 65536, &found) == Verdict::kGood);
  CHECK(std::memcmp(&found, &header, sizeof found) == 0);

  CHECK(CheckSegmentHeader(unit, DigestOf<StoreId>(2), 16, 65536, &found) == Verdict::kForeign);
  CHECK(CheckSegmentHeader(unit, kStore, 32, 65536, &found) == Verdict::kMisdirected);
  CHECK(CheckSegmentHeader(unit, kStore, 16, 65535, &found) == Verdict::kMisdirected);
  unit.fill(std::byte{0});
  CHECK(CheckSegmentHeader(unit, kStore, 16, 65536, &found) == Verdict::kBlank);
  unit.fill(std::byte{7});
  CHECK(CheckSegmentHeader(unit, kStore, 16, 65536, &found) == Verdict::kNoRecord);
}

TEST_CASE("CheckSegmentHeader finds every flipped bit of a header") {
  Unit unit;
  PutSegmentHeader(MakeSegmentHeader(kStore, 16, 65536, 3, SecretOf(5)), unit);
  for (size_t bit = 0; bit < sizeof(SegmentHeader) * 8; ++bit) {
    unit[bit / 8] ^= std::byte{1} << (bit % 8);
    SegmentHeader found{};
    const Verdict verdict = CheckSegmentHeader(unit, kStore, 16, 65536, &found);
    REQUIRE(verdict == (bit < 64 ? Verdict::kNoRecord : bit < 96 ? Verdict::kVersion : Verdict::kDamagedHeader));
    unit[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST_CASE("DrawSecret draws another one each time") { CHECK(DrawSecret() != DrawSecret()); }

TEST_CASE("SegmentFileName sorts as the numbers do") { CHECK(SegmentFileName(7) == "segment-00000007"); }

}  // namespace
}  // namespace kvist::ssd
