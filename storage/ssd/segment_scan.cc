#include "storage/ssd/segment_scan.h"

#include <memory>

namespace kvist::ssd {
namespace {

// The unit behind the record; nothing when what its header says can't be, sealed or not.
uint32_t EndOf(const SegmentToRead& segment, uint32_t unit, const RecordHeader& header) {
  const uint32_t last = segment.units - 1;  // the second segment header
  if (header.segment != segment.number || header.unit != unit || header.epoch != segment.epoch) return 0;
  if (header.payload_bytes > uint64_t{last} * kUnit.value) return 0;  // before the sum below can overflow
  const uint32_t units = UnitsFor({header.payload_bytes});
  return units <= last - unit ? unit + units : 0;
}

}  // namespace

SegmentScanned ScanSegment(RecordSource* source, const SegmentToRead& segment, uint32_t from,
                           absl::FunctionRef<void(const RecordHeader&)> visit, absl::FunctionRef<bool()> more,
                           AtGap at_gap) {
  SegmentScanned scanned;
  scanned.end = from;
  if (segment.units < 3) return scanned;
  const uint32_t last = segment.units - 1;
  const std::unique_ptr<RecordSource::Headers> headers = source->Scan(segment);
  for (uint32_t unit = from; unit < last;) {
    if (!more()) {
      scanned.whole = false;
      return scanned;
    }
    RecordHeader header{};
    const RecordSource::Found found = headers->At(unit, &header);
    const uint32_t end = found == RecordSource::Found::kRecord ? EndOf(segment, unit, header) : 0;
    if (end != 0) {
      visit(header);
      ++scanned.records;
      scanned.end = unit = end;
      continue;
    }
    scanned.unreadable += found == RecordSource::Found::kUnreadable ? 1 : 0;
    if (at_gap == AtGap::kEnd) break;
    const uint32_t next = source->FindNext(segment, unit + 1, last);
    if (next >= last) break;  // behind the last record
    ++scanned.gaps;
    scanned.gap_units += next - unit;
    unit = next;
  }
  return scanned;
}

}  // namespace kvist::ssd
