#ifndef KVIST_STORAGE_SSD_CATALOG_CHECK_H_
#define KVIST_STORAGE_SSD_CATALOG_CHECK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/ssd/catalog_rows.h"
#include "storage/ssd/record_source.h"

// Holding a catalog against the segments: quickly at each start after a crash, thoroughly in kvistctl fsck. Pure.
namespace kvist::ssd {

// Why a catalog that was found after a crash is older than the segments, if it is; then it is to be started over and rebuilt.
//
// A segment's row is committed before its header is written: so a header of a later epoch than its row, or without any, was written
// under a catalog that came after this one. `found`: the segments with a good header of this store.
//
// What this doesn't see lies behind the last known record of a segment that the rows call open (ScanSegment from there): chunks that were
// written, whose commits a crash, or an older copy of the same run, took away; and clears, which must count.
std::optional<std::string> WhyTooOld(std::span<const SegmentRow> rows, std::span<const SegmentToRead> found);

// A chunk as one side has it. Spaces are numbered alike on both sides.
struct CatalogDifference {
  enum Kind {
    kNoRecord,   // a row, and records don't make such a chunk: reading by it is a miss. Repair: erase the row
    kElsewhere,  // a row, and the newest records are at other places. Repair: put the records' row
    kOtherTree,  // the places agree; parent or position don't. Repair: put the records' row
    kNoRow,  // records, and no row: evicted and not overwritten yet, or lost. Nothing to repair; putting the row warms the cache
  };
  Kind kind;
  ChunkId chunk;
};

struct CatalogComparison {
  uint64_t rows = 0;     // compared, of the catalog
  uint64_t records = 0;  // rows that the records make
  uint64_t same = 0;
  uint64_t no_record = 0, elsewhere = 0, other_tree = 0, no_row = 0;
  std::vector<CatalogDifference> first;  // of each kind at most `examples`

  // Nothing that a reader would stumble over.
  bool agrees() const { return no_record == 0 && elsewhere == 0 && other_tree == 0; }
};

// Holds the rows of a catalog (those that a clear has emptied left out) against those that the records make (RebuiltRows). Both are
// sorted here: by space, group, key. A row is known by these; hints and uses aren't compared, which no record has.
CatalogComparison Compare(std::vector<ChunkRow> catalog, std::vector<ChunkRow> records, size_t examples);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_CATALOG_CHECK_H_
