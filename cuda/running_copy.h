#ifndef KVIST_CUDA_RUNNING_COPY_H_
#define KVIST_CUDA_RUNNING_COPY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cuda/copy_engine.h"
#include "cuda/unit_plan.h"
#include "storage/base/ids.h"

namespace kvist::cuda {

// A copy under way: its units, done by several threads, and what has come of them.
//
// Lifecycle: created -> each unit is either Run or Skipped, once, by whoever claimed it -> the call that settles the last
//   one answers true: the copy is quiet, and that caller alone takes its Result.
// Threads:   any number for Run, Skip, Stop and stopped.
//   Writers: each thread counts the units it has settled into `arriving_` (release). Whoever raised it from zero is the
//   reporter until it has brought it back to zero: it alone advances the layers, calls LayerProgress and touches the members
//   below "reporter". No lock, no waiting: the others go on with their next unit.
//   Readers of copied bytes: fence -> step_left_ (release) -> the reporter (acquire) -> LayersDone.
//   Reclamation: shared_ptr; Result drops what the copy borrowed.
class RunningCopy {
 public:
  RunningCopy(Copy copy, Verify verify);

  OpId op() const { return copy_.op; }
  Direction direction() const { return copy_.direction; }
  uint64_t units() const { return plan_.units(); }
  // Whether it copies what may not be there yet, slots that are read into or pages that are written: then no unit is Run that lacks something.
  bool streams() const { return streams_; }
  // So many slots, at least, have to say first that they have what is lacked (each of them will: SlotArrival), or a look is worth while anyway, for
  // pages aren't ready: 1. One that lacks nothing never will; nor does one of whose slots' reads one has failed: that ends the copy.
  uint32_t Lacks(uint64_t unit) const;
  // Of units [k * run(), (k + 1) * run()) none lacks less than those before it.
  uint32_t run() const { return plan_.run(); }
  uint32_t StepOf(uint64_t unit) const { return plan_.At(unit).step; }

  // Of a copy whose pages aren't all ready: Stops it with DeadlineExceeded when they come too late.
  void StopIfLate(int64_t now_nanos) {
    if (now_nanos <= copy_.ready_by_nanos) return;
    late_.store(true, std::memory_order_relaxed);  // relaxed: the queue's mutex publishes it to who settles the last unit
    Stop();
  }

  // Copies a unit. True: the copy is quiet now.
  [[nodiscard]] bool Run(uint64_t unit);

  // The same in three parts, for those who have a device copy the bytes between the first and the last:
  //   what is to be seen to before: what can't be copied (then nothing is; Copied is told so), zeros for pages that are absent
  CopyEnd Begin(uint64_t unit);
  //   the pieces of one of the unit's layers (PieceOrder::kSlot)
  const Copy& copy() const { return copy_; }
  Unit UnitAt(uint64_t unit) const { return plan_.At(unit); }
  PieceRange PiecesOf(const Unit& unit) const;
  //   what came of it; of a store the checksums. True: the copy is quiet now.
  [[nodiscard]] bool Copied(uint64_t unit, CopyEnd end);

  // Settles `count` units that nobody is going to copy. True: the copy is quiet now.
  [[nodiscard]] bool Skip(uint64_t count);

  // Asks that units which are not yet claimed be skipped.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }  // relaxed: a hint, nothing else is published by it
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // What came of it; lets go of the memory and of the progress. Once, when quiet.
  CopyEnd Result();

 private:
  CopyEnd CopyUnit(const Unit& unit) const;
  // OK, or DataLoss of these chunks.
  static CopyEnd OfCorrupt(std::vector<uint32_t> corrupt);
  void BeganNow();
  // True: the copy is quiet now.
  bool Ended(const Unit& unit, CopyEnd end);
  // What a read has failed with of the slots that the unit copies from, or OK.
  absl::Status ReadFailure(const Unit& unit) const;
  // The slots that a unit of pieces reads or writes.
  PieceRange ChunksOf(PieceRange pieces) const;
  absl::Status CopyRange(LayerIndex layer, PieceRange pieces) const;
  absl::Status CopyChecked(LayerIndex layer, PieceRange chunks, std::vector<uint32_t>* corrupt) const;
  bool Settle(uint64_t units);
  void Report();

  Copy copy_;
  const Verify verify_;
  const bool streams_;
  const bool slots_differ_;          // none of those that are being read is there twice
  const uint64_t pieces_per_chunk_;  // of a layer; with checksums 1, for a layer of a chunk has one checksum
  const UnitPlan plan_;
  const bool pages_absent_;                             // some are kNoPage
  std::unique_ptr<std::atomic<uint32_t>[]> step_left_;  // units that the step still lacks
  std::atomic<bool> stopped_{false};
  std::atomic<bool> skipped_{false};
  std::atomic<bool> late_{false};
  std::atomic<bool> failed_{false};
  CopyEnd error_;                        // written by the one who raised failed_, read when quiet
  std::atomic<int64_t> began_nanos_{0};  // of the unit that was first
  std::atomic<uint64_t> arriving_{0};    // settled units that the reporter has not yet counted

  // reporter
  uint64_t settled_ = 0;
  uint32_t steps_done_ = 0;
  uint32_t layers_reported_ = 0;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_RUNNING_COPY_H_
