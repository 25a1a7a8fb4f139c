#ifndef KVIST_STORAGE_SSD_USE_ROWS_H_
#define KVIST_STORAGE_SSD_USE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "storage/base/units.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd {

// Chunks that were used in a period of the owner's: it counts from 0, which is the one that ran when the store was closed last, and goes on; those
// before have numbers below.
struct UsesNote {
  int32_t period = 0;
  Bytes written{};               // in that period until then: how much of it is over
  std::vector<ChunkUse> chunks;  // at most kUsesPerRow
};

// When chunks were used, on its way into the catalog and back: rows of the latest kPeriods periods. Others are erased, by the first note of the next
// life at the latest. It is advice, so nothing waits for it: what can't be committed is dropped, and so is what was noted last before a crash.
//
// Lifecycle: Found any number of times -> Begin -> notes go. What is noted before waits, kWaitingMax of it; where Begin never comes nothing goes.
// Size: kPeriods times what is used in one, 38 bytes a use; in memory from the first Found until the owner has been told.
// Threads: one, the owner's, on which `send` is called.
class UseRows {
 public:
  static constexpr uint32_t kPeriods = 3;
  static constexpr size_t kWaitingMax = 1024;  // notes

  // `send`: has a batch committed, in the order of the calls, or not.
  explicit UseRows(std::function<void(CatalogBatch)> send) : send_(std::move(send)) {}

  // The catalog has this row.
  void Found(UseRow row);
  // All rows have been found. What they say of the latest periods, earlier ones first, each period in as many notes as it has rows.
  std::vector<UsesNote> Begin();
  // One of a period that is new to it, though without chunks, tells the next start that it began. Of periods that are no longer kept nothing is noted.
  void Note(UsesNote note);

 private:
  void Send(UsesNote note);
  void EraseOld(CatalogBatch* batch);

  const std::function<void(CatalogBatch)> send_;
  std::vector<UseRow> found_;
  std::vector<UsesNote> waiting_;
  bool begun_ = false;
  uint32_t base_ = 0;                   // the owner's period 0 in rows
  uint32_t latest_ = 0;                 // in rows
  std::map<uint32_t, uint32_t> parts_;  // [period in rows] the parts that it may have are below
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_USE_ROWS_H_
