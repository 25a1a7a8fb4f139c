#ifndef KVIST_STORAGE_SSD_SEGMENT_HEADER_H_
#define KVIST_STORAGE_SSD_SEGMENT_HEADER_H_

#include <cstddef>
#include <span>
#include <string>

#include "storage/ssd/format.h"
#include "storage/ssd/verdict.h"

namespace kvist::ssd {

// "segment-00000007"
std::string SegmentFileName(uint32_t segment);

// The header of a segment's use: complete, with its checksum. `units`: of the file, both headers included.
SegmentHeader MakeSegmentHeader(const StoreId& store, uint32_t segment, uint64_t units, uint64_t epoch,
                                const Secret& secret);

// Writes it as it lies on the disk: a unit, zeros behind the header.
void PutSegmentHeader(const SegmentHeader& header, std::span<std::byte, kUnit.value> unit);

// What `unit` holds, which was read from segment `segment` of `store`, whose file has so many units. kGood: `*header` is it.
// Else kBlank, kNoRecord, kVersion, kDamagedHeader, kForeign, or kMisdirected: another segment's, or of another length.
Verdict CheckSegmentHeader(std::span<const std::byte, kUnit.value> unit, const StoreId& store, uint32_t segment,
                           uint64_t units, SegmentHeader* header);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEGMENT_HEADER_H_
