#include "storage/ssd/segment_header.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/xxh3.h"

namespace kvist::ssd {
namespace {

uint64_t ChecksumOf(const SegmentHeader& header) { return XXH3_64bits(&header, offsetof(SegmentHeader, checksum)); }

}  // namespace

std::string SegmentFileName(uint32_t segment) { return absl::StrFormat("segment-%08u", segment); }

SegmentHeader MakeSegmentHeader(const StoreId& store, uint32_t segment, uint64_t units, uint64_t epoch,
                                const Secret& secret) {
  SegmentHeader header{kSegmentMagic, kFormatVersion, segment, epoch, units, store, secret, 0};
  header.checksum = ChecksumOf(header);
  return header;
}

void PutSegmentHeader(const SegmentHeader& header, std::span<std::byte, kUnit.value> unit) {
  std::memset(unit.data(), 0, unit.size());
  std::memcpy(unit.data(), &header, sizeof header);
}

Verdict CheckSegmentHeader(std::span<const std::byte, kUnit.value> unit, const StoreId& store, uint32_t segment,
                           uint64_t units, SegmentHeader* header) {
  SegmentHeader found;
  std::memcpy(&found, unit.data(), sizeof found);
  if (found.magic != kSegmentMagic) {
    const bool blank = std::all_of(unit.begin(), unit.end(), [](std::byte b) { return b == std::byte{0}; });
    return blank ? Verdict::kBlank : Verdict::kNoRecord;
  }
  if (found.version != kFormatVersion) return Verdict::kVersion;
  if (found.checksum != ChecksumOf(found)) return Verdict::kDamagedHeader;
  if (found.store != store) return Verdict::kForeign;
  if (found.segment != segment || found.units != units) return Verdict::kMisdirected;
  *header = found;
  return Verdict::kGood;
}

}  // namespace kvist::ssd
