#include "storage/ssd/record.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>

#include "storage/base/check.h"
#include "storage/base/xxh3.h"

namespace kvist::ssd {
namespace {

std::span<const std::byte> RunOf(const std::byte* record, const RecordHeader& header, uint32_t run) {
  return {record + kHeaderBytes.value + RunOffset(header, run).value, RunBytes(header).value};
}

std::span<const std::byte> Before(const RecordHeader& header, size_t offset) {
  return std::as_bytes(std::span(&header, 1)).first(offset);
}

std::span<const std::byte> ChecksumsOf(const std::byte* record, const RecordHeader& header) {
  return {record + kChecksumsAt.value, header.runs * sizeof(uint64_t)};
}

uint64_t HeaderChecksum(const std::byte* record, const RecordHeader& header) {
  const std::span<const std::byte> fields = Before(header, offsetof(RecordHeader, checksum));
  const std::span<const std::byte> checksums = ChecksumsOf(record, header);
  return XXH3_64bits_withSeed(checksums.data(), checksums.size(), XXH3_64bits(fields.data(), fields.size()));
}

Seal SealOf(const std::byte* record, const RecordHeader& header, const Secret& secret, Sealer* sealer) {
  return sealer->Of(secret, Before(header, offsetof(RecordHeader, seal)), ChecksumsOf(record, header));
}

uint64_t TailOf(const std::byte* record, const RecordHeader& header) {
  const uint64_t units = UnitsFor({header.payload_bytes});
  return units == 1 ? 0 : XXH3_64bits(record + (units - 1) * kUnit.value, kUnit.value);
}

}  // namespace

bool WellFormed(const RecordHeader& header) {
  if (header.payload_bytes > kPayloadMax.value) return false;
  if (header.runs == 0) return header.payload_bytes == 0;
  if (header.payload_bytes == 0 || header.layers > kLayersMax) return false;
  if (header.codec != Codec::kRaw) return header.runs == 1;
  if (header.runs == 1 && header.layers != 1) return true;
  // The quotient, because the product might overflow.
  return header.runs == header.layers && header.payload_bytes % header.layers == 0 &&
         header.payload_bytes / header.layers == header.layer_bytes;
}

RecordSealing::RecordSealing(std::byte* slot, const RecordHeader& header, const SegmentHeader& segment, Place place,
                             Checksums checksums)
    : slot_(slot), header_(header), secret_(segment.secret) {
  header_.magic = kRecordMagic;
  header_.version = kFormatVersion;
  header_.epoch = segment.epoch;
  header_.segment = place.segment;
  header_.unit = place.unit;
  header_.store = segment.store;
  header_.reserved = 0;
  std::memset(header_.unused, 0, sizeof header_.unused);
  std::memset(header_.padding, 0, sizeof header_.padding);
  KVIST_CHECK(WellFormed(header_) && place.segment == segment.segment && place);

  std::byte* const payload = slot_ + kHeaderBytes.value;
  const uint64_t end = AlignUp({header_.payload_bytes}, kUnit).value;
  std::memset(payload + header_.payload_bytes, 0, end - header_.payload_bytes);
  header_.tail = TailOf(slot_, header_);
  const uint64_t used = kChecksumsAt.value + header_.runs * sizeof(uint64_t);
  std::memset(slot_ + used, 0, kHeaderBytes.value - used);
  if (checksums == Checksums::kKeep) next_run_ = header_.runs;
}

bool RecordSealing::Go(Bytes* budget, Sealer* sealer) {
  for (bool first = true; next_run_ < header_.runs; ++next_run_, first = false) {
    const Bytes bytes = RunBytes(header_);
    if (!first && bytes > *budget) return false;
    PutLayerChecksum(slot_, next_run_, RunOf(slot_, header_, next_run_));
    *budget = std::max(*budget, bytes) - bytes;
  }
  header_.checksum = HeaderChecksum(slot_, header_);
  header_.seal = SealOf(slot_, header_, secret_, sealer);
  std::memcpy(slot_, &header_, sizeof header_);
  return true;
}

void SealRecord(std::byte* slot, const RecordHeader& header, const SegmentHeader& segment, Place place, Checksums checksums,
                Sealer* sealer) {
  RecordSealing sealing(slot, header, segment, place, checksums);
  Bytes all{UINT64_MAX};
  while (!sealing.Go(&all, sealer)) {}
}

Verdict CheckHeader(const std::byte* record, const SegmentHeader& segment, Place place, Sealer* sealer,
                    RecordHeader* header) {
  RecordHeader found;
  std::memcpy(&found, record, sizeof found);
  if (found.magic != kRecordMagic) {
    const bool blank = std::all_of(record, record + kHeaderBytes.value, [](std::byte b) { return b == std::byte{0}; });
    return blank ? Verdict::kBlank : Verdict::kNoRecord;
  }
  if (found.version != kFormatVersion) return Verdict::kVersion;
  if (found.runs > kLayersMax || found.checksum != HeaderChecksum(record, found)) return Verdict::kDamagedHeader;
  if (found.store != segment.store) return Verdict::kForeign;
  if (found.segment != place.segment || found.unit != place.unit) return Verdict::kMisdirected;
  if (found.epoch < segment.epoch) return Verdict::kStale;
  if (found.epoch > segment.epoch) return Verdict::kGone;
  const Seal seal = SealOf(record, found, segment.secret, sealer);
  if (CRYPTO_memcmp(seal.data(), found.seal.data(), seal.size()) != 0) return Verdict::kForged;
  // What is sealed was well-formed once; but a record that goes on behind the segment's end is none.
  if (!WellFormed(found) || uint64_t{place.unit} + UnitsFor({found.payload_bytes}) >= segment.units)
    return Verdict::kDamagedHeader;
  *header = found;
  return Verdict::kGood;
}

bool RunMatches(const std::byte* record, const RecordHeader& header, uint32_t run) {
  return LayerMatches(record, run, RunOf(record, header, run));
}

Verdict CheckPayload(const std::byte* record, const RecordHeader& header) {
  for (uint32_t run = 0; run < header.runs; ++run) {
    if (!RunMatches(record, header, run)) return header.tail == TailOf(record, header) ? Verdict::kCorrupt : Verdict::kTorn;
  }
  return Verdict::kGood;
}

}  // namespace kvist::ssd
