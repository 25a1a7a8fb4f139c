#ifndef KVIST_STORAGE_SSD_SEGMENT_SCAN_H_
#define KVIST_STORAGE_SSD_SEGMENT_SCAN_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "storage/ssd/record_source.h"

namespace kvist::ssd {

struct SegmentScanned {
  uint64_t records = 0;
  uint64_t gaps = 0;        // places where no record was, and behind which there were some: damage
  uint64_t gap_units = 0;   // what these took
  uint64_t unreadable = 0;  // headers that the disk didn't give
  uint32_t end = 1;         // the unit behind the last record
  bool whole = true;        // false: `more` said no
};

// Where no record is: the next that there is, so a damaged header costs its own record and no other; or the end, for before a durable record there is
// never a gap, and to look for more may mean to read all of the file.
enum class AtGap : uint8_t { kGoOn, kEnd };

// Hands the headers of all records of a segment from unit `from` on to `visit`, in their order: one read for each record, or for many small ones.
//
// `more` is asked before each read: false ends it.
SegmentScanned ScanSegment(RecordSource* source, const SegmentToRead& segment, uint32_t from,
                           absl::FunctionRef<void(const RecordHeader&)> visit, absl::FunctionRef<bool()> more,
                           AtGap at_gap = AtGap::kGoOn);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEGMENT_SCAN_H_
