#ifndef KVIST_STORAGE_SSD_CATALOG_CHECK_H_
#define KVIST_STORAGE_SSD_CATALOG_CHECK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "storage/ssd/catalog.h"
#include "storage/ssd/catalog_rows.h"
#include "storage/ssd/record_source.h"

// Holding a catalog against the segments: quickly at each start after a crash, thoroughly in fsck.h. Pure.
namespace kvist::ssd {

// Why a catalog that was found after a crash is older than the segments, if it is; then it is to be started over and rebuilt.
//
// A segment's row is committed before its header is written: so a header of a later epoch than its row, or without any, was written
// under a catalog that came after this one. `found`: the segments with a good header of this store.
//
// What this doesn't see lies in segments that the rows call open, which a start therefore reads (catalog.md, 4): chunks that were written, whose
// commits a crash, or an older copy of the same run, took away; and clears, which must count.
std::optional<std::string> WhyTooOld(std::span<const SegmentRow> rows, std::span<const SegmentToRead> found);

// Which good record lies where. Pure; 16 bytes a record.
class GoodRecords {
 public:
  // `space`: the number by which rows name the record's space.
  void Add(const RecordHeader& header, uint32_t space);
  // Whether all of the row's places hold its shards.
  bool Hold(const ChunkRow& row) const;
  size_t count() const { return at_.size(); }

 private:
  absl::flat_hash_map<uint64_t, uint64_t> at_;  // place -> what lies there, by its hash
};

// What a catalog says, held against what the segments have.
struct CatalogCheck {
  uint64_t rows = 0;       // of chunks
  uint64_t good = 0;       // that lead to their records
  uint64_t broken = 0;     // that lead to something else: to read by such a row is a miss
  uint64_t unread = 0;     // that lead to segments that couldn't be read; not in `repair`
  uint64_t misplaced = 0;  // whose parent or position isn't what the records say: they may not be found
  uint64_t unlisted = 0;   // chunks that the records make, and no row: freed and not overwritten yet, or lost. No fault
  CatalogBatch repair;     // puts right what is broken or misplaced: the row that the records make, or none

  bool sound() const { return broken == 0 && unread == 0 && misplaced == 0; }
};

// `rows`: of the catalog, those that a clear has emptied left out. `records`: the rows that the good records make (RebuiltRows). A row is
// known by space, group and key; hints and uses aren't compared, which no record has. `was_read`: whether all of a segment was.
CatalogCheck HoldAgainst(std::span<const ChunkRow> rows, std::span<const ChunkRow> records, const GoodRecords& good,
                         absl::FunctionRef<bool(uint32_t segment)> was_read);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_CATALOG_CHECK_H_
