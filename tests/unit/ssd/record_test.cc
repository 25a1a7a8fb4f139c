#include "storage/ssd/record.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <string>

#include "storage/base/xxh3.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

constexpr uint32_t kLayers = 5;
constexpr Bytes kLayerBytes{3000};  // layers straddle units, the last unit has padding
constexpr Place kPlace{16, 9};

// A sealed shard as it would lie in memory after it was read.
struct Sealed {
  SegmentHeader segment = MakeSegmentHeader(DigestOf<StoreId>(1), kPlace.segment, 1000, 7, SecretOf(8));
  RecordHeader wanted = ShardHeader(42, kLayers, kLayerBytes);
  AlignedBytes slot{kUnit * UnitsFor({wanted.payload_bytes})};
  Sealer sealer;

  explicit Sealed(Place place = kPlace) {
    std::memset(slot.data(), 0xee, slot.size().value);
    FillPayload(slot.data(), 42, wanted.payload_bytes);
    segment = MakeSegmentHeader(segment.store, place.segment, 1000, 7, SecretOf(8));
    SealRecord(slot.data(), wanted, segment, place, Checksums::kCompute, &sealer);
  }
  Verdict Header(Place place = kPlace) {
    RecordHeader found;
    return CheckHeader(slot.data(), segment, place, &sealer, &found);
  }
  Verdict Whole() {
    RecordHeader found;
    const Verdict verdict = CheckHeader(slot.data(), segment, kPlace, &sealer, &found);
    return verdict == Verdict::kGood ? CheckPayload(slot.data(), found) : verdict;
  }
  void Flip(uint64_t bit) { slot.data()[bit / 8] ^= std::byte{1} << (bit % 8); }
};

TEST_CASE("SealRecord makes a record that says what and where it is") {
  Sealed sealed;
  RecordHeader found;
  REQUIRE(CheckHeader(sealed.slot.data(), sealed.segment, kPlace, &sealed.sealer, &found) == Verdict::kGood);
  CHECK(CheckPayload(sealed.slot.data(), found) == Verdict::kGood);
  CHECK(Is(found, IdentityOf(sealed.wanted)));
  CHECK(found.sequence == 42);
  CHECK(found.epoch == 7);
  CHECK(found.parent == sealed.wanted.parent);
  Identity other = IdentityOf(sealed.wanted);
  other.shard.value ^= 1;
  CHECK_FALSE(Is(found, other));
  other = IdentityOf(sealed.wanted);
  other.space.bytes[31] ^= 1;
  CHECK_FALSE(Is(found, other));
}

TEST_CASE("SealRecord leaves nothing in padding and behind the checksums of what was there before") {
  Sealed sealed;
  for (uint64_t i = kHeaderBytes.value + sealed.wanted.payload_bytes; i < sealed.slot.size().value; ++i)
    REQUIRE(sealed.slot.data()[i] == std::byte{0});
  for (uint64_t i = kChecksumsAt.value + kLayers * 8; i < kHeaderBytes.value; ++i)
    REQUIRE(sealed.slot.data()[i] == std::byte{0});
}

TEST_CASE("SealRecord's checksums are those of cuda's slots") {
  Sealed sealed;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    uint64_t stored = 0;
    std::memcpy(&stored, sealed.slot.data() + 512 + layer * 8, 8);
    CHECK(stored == XXH3_64bits_withSeed(sealed.slot.data() + 4096 + layer * kLayerBytes.value, kLayerBytes.value, layer));
  }
}

TEST_CASE("SealRecord keeps checksums that are there when told, so that a flip in DRAM is found") {
  Sealed sealed;
  sealed.Flip((kHeaderBytes.value + 3100) * 8);
  SealRecord(sealed.slot.data(), sealed.wanted, sealed.segment, kPlace, Checksums::kKeep, &sealed.sealer);
  CHECK(sealed.Header() == Verdict::kGood);
  CHECK(sealed.Whole() == Verdict::kCorrupt);
}

TEST_CASE("CheckHeader and CheckPayload find every flipped bit") {
  Sealed sealed;
  std::set<Verdict> header;
  // What is neither covered nor used: behind the seal, and behind the checksums. SealRecord makes it zero, and nobody reads it.
  const auto unread = [](uint64_t byte) {
    return (byte >= offsetof(RecordHeader, padding) && byte < 512) || (byte >= 512 + kLayers * 8 && byte < 4096);
  };
  const uint64_t payload_end = kHeaderBytes.value + sealed.wanted.payload_bytes;
  const uint64_t last_unit = sealed.slot.size().value - kUnit.value;
  uint64_t injected = 0;
  uint64_t detected = 0;
  for (uint64_t byte = 0; byte < payload_end; ++byte) {
    if (unread(byte)) continue;
    const uint64_t bit = byte * 8 + byte * 5 % 8;
    sealed.Flip(bit);
    const Verdict verdict = sealed.Whole();
    sealed.Flip(bit);
    ++injected;
    detected += verdict != Verdict::kGood;
    if (byte < kHeaderBytes.value) {
      header.insert(verdict);
    } else if (verdict != (byte < last_unit ? Verdict::kCorrupt : Verdict::kTorn)) {
      FAIL("byte " << byte << ": " << NameOf(verdict));
    }
  }
  CHECK(detected == injected);
  CHECK(sealed.Whole() == Verdict::kGood);
  CHECK(header == std::set<Verdict>{Verdict::kNoRecord, Verdict::kVersion, Verdict::kDamagedHeader, Verdict::kForged});
}

TEST_CASE("RunMatches finds the run that was changed, and only that one") {
  for (uint32_t changed = 0; changed < kLayers; ++changed) {
    Sealed sealed;
    RecordHeader header;
    REQUIRE(CheckHeader(sealed.slot.data(), sealed.segment, kPlace, &sealed.sealer, &header) == Verdict::kGood);
    sealed.Flip((kHeaderBytes.value + changed * kLayerBytes.value + 17) * 8 + 3);
    for (uint32_t run = 0; run < kLayers; ++run) CHECK(RunMatches(sealed.slot.data(), header, run) == (run != changed));
  }
}

TEST_CASE("CheckHeader tells what else may lie at a place") {
  Sealed sealed;
  SECTION("zeros") {
    std::memset(sealed.slot.data(), 0, kHeaderBytes.value);
    CHECK(sealed.Header() == Verdict::kBlank);
  }
  SECTION("payload") {
    std::memset(sealed.slot.data(), 0x5a, kHeaderBytes.value);
    CHECK(sealed.Header() == Verdict::kNoRecord);
  }
  SECTION("a record of another place of this segment") {
    CHECK(sealed.Header({kPlace.segment, 10}) == Verdict::kMisdirected);
  }
  SECTION("a record of another segment, whose secret nobody here knows") {
    Sealed other({kPlace.segment + 16, kPlace.unit});
    std::memcpy(sealed.slot.data(), other.slot.data(), sealed.slot.size().value);
    CHECK(sealed.Header() == Verdict::kMisdirected);
  }
  SECTION("a record of an earlier use") {
    sealed.segment = MakeSegmentHeader(sealed.segment.store, kPlace.segment, 1000, 8, SecretOf(9));
    CHECK(sealed.Header() == Verdict::kStale);
  }
  SECTION("a record of a later use") {
    sealed.segment = MakeSegmentHeader(sealed.segment.store, kPlace.segment, 1000, 6, SecretOf(9));
    CHECK(sealed.Header() == Verdict::kGone);
  }
  SECTION("a record of another store") {
    sealed.segment = MakeSegmentHeader(DigestOf<StoreId>(2), kPlace.segment, 1000, 7, SecretOf(8));
    CHECK(sealed.Header() == Verdict::kForeign);
  }
  SECTION("a record that somebody made who doesn't know the secret") {
    sealed.segment = MakeSegmentHeader(sealed.segment.store, kPlace.segment, 1000, 7, SecretOf(9));
    CHECK(sealed.Header() == Verdict::kForged);
  }
  SECTION("a record that would end behind the segment's end") {
    const uint64_t units = kPlace.unit + UnitsFor({sealed.wanted.payload_bytes});
    sealed.segment = MakeSegmentHeader(sealed.segment.store, kPlace.segment, units, 7, SecretOf(8));
    CHECK(sealed.Header() == Verdict::kDamagedHeader);  // the last unit is the other header's
    sealed.segment = MakeSegmentHeader(sealed.segment.store, kPlace.segment, units + 1, 7, SecretOf(8));
    CHECK(sealed.Header() == Verdict::kGood);
  }
}

TEST_CASE("CheckHeader isn't fooled by a header's unit that is torn between sectors") {
  // What was there before: another shard of the same shape, at the same place, in an earlier use. Only sectors 0..k of the new one arrive.
  for (uint64_t sectors = 1; sectors < 8; ++sectors) {
    Sealed sealed;
    AlignedBytes before(sealed.slot.size());
    RecordHeader old = ShardHeader(41, kLayers, kLayerBytes);
    FillPayload(before.data(), 41, old.payload_bytes);
    const SegmentHeader use = MakeSegmentHeader(sealed.segment.store, kPlace.segment, 1000, 6, SecretOf(3));
    SealRecord(before.data(), old, use, kPlace, Checksums::kCompute, &sealed.sealer);
    std::memcpy(sealed.slot.data() + sectors * 512, before.data() + sectors * 512, sealed.slot.size().value - sectors * 512);
    // Five checksums end within the second sector: from there on all that arrived is the header.
    CHECK(sealed.Whole() == (sectors == 1 ? Verdict::kDamagedHeader : Verdict::kTorn));
  }
}

TEST_CASE("CheckPayload calls a write that came to half its way torn, wherever it ended") {
  for (const bool over_zeros : {true, false}) {
    for (uint64_t arrived = 1; arrived < UnitsFor({kLayers * kLayerBytes.value}); ++arrived) {
      Sealed sealed;
      const uint64_t from = arrived * kUnit.value;
      std::memset(sealed.slot.data() + from, over_zeros ? 0 : 0x5a, sealed.slot.size().value - from);
      CHECK(sealed.Whole() == Verdict::kTorn);
    }
  }
}

TEST_CASE("CheckHeader takes records without payload, with one run over all layers, and of full length") {
  Sealed sealed;
  RecordHeader found;
  RecordHeader clear{};
  clear.kind = RecordKind::kClear;
  clear.sequence = 9;
  SealRecord(sealed.slot.data(), clear, sealed.segment, kPlace, Checksums::kCompute, &sealed.sealer);
  REQUIRE(CheckHeader(sealed.slot.data(), sealed.segment, kPlace, &sealed.sealer, &found) == Verdict::kGood);
  CHECK(CheckPayload(sealed.slot.data(), found) == Verdict::kGood);
  CHECK(UnitsFor({found.payload_bytes}) == 1);

  RecordHeader pages = sealed.wanted;
  pages.order = SlotOrder::kPageMajor;
  pages.runs = 1;
  SealRecord(sealed.slot.data(), pages, sealed.segment, kPlace, Checksums::kCompute, &sealed.sealer);
  REQUIRE(CheckHeader(sealed.slot.data(), sealed.segment, kPlace, &sealed.sealer, &found) == Verdict::kGood);
  CHECK(CheckPayload(sealed.slot.data(), found) == Verdict::kGood);
  sealed.Flip((kHeaderBytes.value + 4 * kLayerBytes.value) * 8 - 1);
  CHECK(CheckPayload(sealed.slot.data(), found) == Verdict::kCorrupt);

  RecordHeader encoded = sealed.wanted;
  encoded.codec = Codec{3};
  encoded.runs = 1;
  encoded.payload_bytes = 5001;
  SealRecord(sealed.slot.data(), encoded, sealed.segment, kPlace, Checksums::kCompute, &sealed.sealer);
  REQUIRE(CheckHeader(sealed.slot.data(), sealed.segment, kPlace, &sealed.sealer, &found) == Verdict::kGood);
  CHECK(found.codec == Codec{3});
  CHECK(found.raw_bytes == sealed.wanted.raw_bytes);
  CHECK(CheckPayload(sealed.slot.data(), found) == Verdict::kGood);
  sealed.Flip((kHeaderBytes.value + 5001) * 8 - 1);
  CHECK(CheckPayload(sealed.slot.data(), found) != Verdict::kGood);
}

TEST_CASE("WellFormed refuses lengths that contradict each other") {
  const RecordHeader good = ShardHeader(1, kLayers, kLayerBytes);
  CHECK(WellFormed(good));
  const auto refused = [&](auto change) {
    RecordHeader header = good;
    change(header);
    return !WellFormed(header);
  };
  CHECK(refused([](RecordHeader& h) { h.runs = 2; }));
  CHECK(refused([](RecordHeader& h) { h.runs = 0; }));
  CHECK(refused([](RecordHeader& h) { h.layers = h.runs = 0; }));
  CHECK(refused([](RecordHeader& h) { h.layers = h.runs = kLayersMax + 1; }));
  CHECK(refused([](RecordHeader& h) { h.payload_bytes -= 1; }));
  CHECK(refused([](RecordHeader& h) { h.payload_bytes = 0; }));
  CHECK(refused([](RecordHeader& h) { h.layer_bytes = UINT64_MAX / 5 + 2; }));  // 5 times that is 5, in 64 bits
  CHECK(refused([](RecordHeader& h) { h.codec = Codec{1}; }));                  // has one run
  CHECK_FALSE(refused([](RecordHeader& h) { h.codec = Codec{1}, h.layers = h.runs = 1, h.payload_bytes = 17; }));
  CHECK(refused([](RecordHeader& h) { h.runs = 1, h.layers = 7, h.payload_bytes = kPayloadMax.value + 1; }));
}

TEST_CASE("Verdicts have names of their own") {
  std::set<std::string> names;
  for (uint32_t i = 0; i < kVerdicts; ++i) names.insert(NameOf(static_cast<Verdict>(i)));
  CHECK(names.size() == kVerdicts);
  CHECK_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace kvist::ssd
