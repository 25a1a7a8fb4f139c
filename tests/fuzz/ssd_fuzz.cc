// What lies on an SSD: a segment's header and a record -> what they are taken for. A disk may hold anything, and payload is what
// engines choose.
//
// Input: the first byte says what is made of the rest.
//   bit 0  a segment's header is read from it, as it stands
//   bit 1  else a record is sealed, and what follows changes some of its bytes (offset, value); else the bytes are a record as they stand
//   bit 2  the header's checksum is put right again, bit 3 its seal, too: as by somebody who knows the secret
// Holds: what passes is well-formed, of this place and ends within the segment; its runs can be checked without a byte outside of the
// record being touched (AddressSanitizer), whatever they hold; a record that was changed and not sealed again doesn't pass.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "storage/base/check.h"
#include "storage/base/xxh3.h"
#include "storage/ssd/record.h"
#include "storage/ssd/segment_header.h"

namespace {

namespace ssd = kvist::ssd;

constexpr uint32_t kLayers = 3;
constexpr uint64_t kLayerBytes = 100;
constexpr ssd::Place kPlace{16, 5};
constexpr uint64_t kUnits = 64;  // of the segment

ssd::SegmentHeader Segment() {
  ssd::Secret secret;
  secret.fill(7);
  return ssd::MakeSegmentHeader({}, kPlace.segment, kUnits, 3, secret);
}

ssd::RecordHeader Shard() {
  ssd::RecordHeader header{};
  header.sequence = 1;
  header.kind = ssd::RecordKind::kShard;
  header.order = ssd::SlotOrder::kLayerMajor;
  header.layers = header.runs = kLayers;
  header.layer_bytes = kLayerBytes;
  header.payload_bytes = header.raw_bytes = kLayers * kLayerBytes;
  return header;
}

// Behind the seal and behind the checksums in use lies what nobody reads.
bool IsRead(uint64_t byte) {
  const uint64_t checksums_end = ssd::kChecksumsAt.value + kLayers * sizeof(uint64_t);
  return byte < offsetof(ssd::RecordHeader, padding) || (byte >= ssd::kChecksumsAt.value && byte < checksums_end);
}

void PutRight(std::byte* record, bool seal, const ssd::SegmentHeader& segment, ssd::Sealer* sealer) {
  ssd::RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  if (header.runs > ssd::kLayersMax) return;
  const std::span<const std::byte> checksums(record + ssd::kChecksumsAt.value, header.runs * sizeof(uint64_t));
  header.checksum =
      XXH3_64bits_withSeed(checksums.data(), checksums.size(), XXH3_64bits(&header, offsetof(ssd::RecordHeader, checksum)));
  if (seal) {
    const auto before = std::as_bytes(std::span(&header, 1)).first(offsetof(ssd::RecordHeader, seal));
    header.seal = sealer->Of(segment.secret, before, checksums);
  }
  std::memcpy(record, &header, sizeof header);
}

void CheckSegment(std::span<const uint8_t> input) {
  alignas(8) std::byte unit[ssd::kUnit.value] = {};
  std::memcpy(unit, input.data(), std::min<size_t>(input.size(), sizeof unit));
  ssd::SegmentHeader found{};
  const ssd::Verdict verdict = ssd::CheckSegmentHeader(unit, {}, kPlace.segment, kUnits, &found);
  KVIST_CHECK(verdict != ssd::Verdict::kGood || (found.segment == kPlace.segment && found.units == kUnits));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t how = data[0];
  std::span<const uint8_t> input(data + 1, size - 1);
  if ((how & 1) != 0) {
    CheckSegment(input);
    return 0;
  }
  static ssd::Sealer sealer;
  static const ssd::SegmentHeader segment = Segment();
  // Just the header's unit, so that AddressSanitizer sees whoever reads behind it.
  auto record = std::make_unique<std::byte[]>(2 * ssd::kUnit.value);
  std::unique_ptr<std::byte[]> sealed;  // the header's unit before it was changed
  if ((how & 2) != 0) {
    std::memset(record.get() + ssd::kUnit.value, 0x55, kLayers * kLayerBytes);
    ssd::SealRecord(record.get(), Shard(), segment, kPlace, ssd::Checksums::kCompute, &sealer);
    sealed = std::make_unique<std::byte[]>(ssd::kUnit.value);
    std::memcpy(sealed.get(), record.get(), ssd::kUnit.value);
    for (; input.size() >= 3; input = input.subspan(3)) {
      const uint64_t at = (input[0] | uint64_t{input[1]} << 8) % ssd::kUnit.value;
      record[at] = std::byte{input[2]};
    }
  } else {
    std::memcpy(record.get(), input.data(), std::min<size_t>(input.size(), ssd::kUnit.value));
  }
  if ((how & 4) != 0) PutRight(record.get(), (how & 8) != 0, segment, &sealer);
  bool changed = sealed == nullptr;
  for (uint64_t i = 0; i < ssd::kUnit.value && !changed; ++i) changed = IsRead(i) && record[i] != sealed[i];

  ssd::RecordHeader header{};
  auto alone = std::make_unique<std::byte[]>(ssd::kUnit.value);
  std::memcpy(alone.get(), record.get(), ssd::kUnit.value);
  const ssd::Verdict verdict = ssd::CheckHeader(alone.get(), segment, kPlace, &sealer, &header);
  if ((how & 12) != 12) KVIST_CHECK((verdict == ssd::Verdict::kGood) == !changed);
  if (verdict != ssd::Verdict::kGood) return 0;
  KVIST_CHECK(ssd::WellFormed(header) && header.segment == kPlace.segment && header.unit == kPlace.unit);
  const uint64_t units = ssd::UnitsFor({header.payload_bytes});
  KVIST_CHECK(kPlace.unit + units < kUnits && header.epoch == segment.epoch);
  // A payload as long as the header says, and no byte longer.
  auto whole = std::make_unique<std::byte[]>(units * ssd::kUnit.value);
  std::memcpy(whole.get(), record.get(), std::min(units, uint64_t{2}) * ssd::kUnit.value);
  const ssd::Verdict payload = ssd::CheckPayload(whole.get(), header);
  if (!changed) KVIST_CHECK(payload == ssd::Verdict::kGood);
  return 0;
}
