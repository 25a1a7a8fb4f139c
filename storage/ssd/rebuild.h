#ifndef KVIST_STORAGE_SSD_REBUILD_H_
#define KVIST_STORAGE_SSD_REBUILD_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "storage/ssd/catalog.h"
#include "storage/ssd/rebuilt_rows.h"
#include "storage/ssd/record_source.h"
#include "storage/ssd/segment_scan.h"

namespace kvist::ssd {

struct RebuildReport {
  absl::Status status;  // OK; Cancelled: the sink had enough, or it was destroyed
  RebuildCounts counts;
  uint64_t gaps = 0;  // places where records were expected and none was, with others behind
  uint64_t gap_units = 0;
  uint64_t unreadable = 0;  // headers that the disk didn't give
  uint64_t highest_sequence = 0;
};

// Takes what a rebuild finds. Threads: called by Run, but for Believes, which its readers call, several at once.
class RebuildSink {
 public:
  virtual ~RebuildSink() = default;
  // The number that rows shall name the space by: the one it has, or a new one. Nothing: its chunks are left out.
  virtual std::optional<uint32_t> NumberOf(const SpaceDigest& digest, std::string_view description) = 0;
  // False: this record doesn't count, for the taker knows an older one of that shard which does.
  virtual bool Believes(const RecordHeader&) const { return true; }
  // As RowSink's: clears first, then chunks, parents before children. Rows of what was stored or cleared meanwhile are older than what
  // the taker knows (compare sequence numbers). The taker commits them, and FinishRebuild behind the last.
  virtual bool Take(RowBatch rows) = 0;
  // The last call.
  virtual void Rebuilt(const RebuildReport& report) = 0;
};

struct RebuildOptions {
  // Segments that are read at the same time, each by a thread that mostly waits; 0: one after the other, by Run. Larger: faster where
  // disks serve many reads at once, and slower for those who load meanwhile.
  uint32_t readers = 16;
  AtGap at_gap = AtGap::kGoOn;
};

// Reads the headers of all records and tells what they say, beside whatever is served.
//
// Lifecycle: made -> Run, once, which ends with Rebuilt. `segments`, which were flushed before: those that were there when it began: what is written later is
//   committed by who writes it. Threads: Run waits; any may call the others.
class Rebuild {
 public:
  // Borrows both until it is destroyed.
  Rebuild(RecordSource* source, std::vector<SegmentToRead> segments, RebuildSink* sink, RebuildOptions options = {});
  Rebuild(const Rebuild&) = delete;
  Rebuild& operator=(const Rebuild&) = delete;

  void Run();
  // Run ends soon, and Rebuilt comes all the same.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  struct Progress {
    uint64_t segments = 0;  // in all
    uint64_t segments_read = 0;
    uint64_t records = 0;
  };
  Progress progress() const {
    return {segments_.size(), segments_read_.load(std::memory_order_relaxed), records_.load(std::memory_order_relaxed)};
  }

 private:
  void ReadSegments();
  absl::Status NumberSpaces();
  absl::Status HandOver();
  bool Cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  RecordSource* const source_;
  const std::vector<SegmentToRead> segments_;
  RebuildSink* const sink_;
  const RebuildOptions options_;

  // Counters and a wish: nothing else is published by them.
  std::atomic<bool> cancelled_ = false;
  std::atomic<size_t> next_segment_ = 0;
  std::atomic<uint64_t> segments_read_ = 0;
  std::atomic<uint64_t> records_ = 0;

  absl::Mutex mutex_;
  RebuiltRows rows_ ABSL_GUARDED_BY(mutex_);  // the readers'; when they are done that of the one that is left
  RebuildReport report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_REBUILD_H_
