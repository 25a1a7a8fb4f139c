#ifndef KVIST_CUDA_COPY_QUEUE_H_
#define KVIST_CUDA_COPY_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cuda/running_copy.h"
#include "cuda/sleepers.h"
#include "storage/base/ids.h"

namespace kvist::cuda {

// The copies of an engine that aren't quiet, and which of their units comes next: what was cancelled (it has only to end), loads, stores;
// each first come, first served. Copies that stream (from slots that are being read, of pages that are being written) wait apart; their units
// join the others when they lack nothing more: a thread looks, once for all that has come by then.
//
// Each look finds how many slots must have come, at the least, before the next one can find anything; those are counted without the mutex, and
// whoever is the last of them wakes a thread. (A wake takes as long as the check of a run of 32 KiB; where runs come one by one, all but one in 16
// were for nothing.)
//
// Units are claimed under one mutex: some tens of nanoseconds against about 100 us of copying, and it keeps the order of claims in one place.
// Threads: any.
class CopyQueue {
 public:
  // Units [first, first + count) of `copy`, to be copied or skipped.
  struct Claim {
    std::shared_ptr<RunningCopy> copy;
    uint64_t first = 0;
    uint64_t count = 1;
    bool skip = false;
  };
  struct Wanted {
    bool loads = true;
    bool stores = true;
  };

  CopyQueue() = default;
  ~CopyQueue();  // all copies are quiet and forgotten

  void Submit(std::shared_ptr<RunningCopy> copy);
  void Cancel(OpId op);
  void Arrived() {
    if (arrived_.fetch_add(1) + 1 >= look_at_.load()) Look();
  }
  void Look();
  // Nothing that isn't claimed will be copied.
  void Stop();

  // The next claim of what is wanted. Sleeps for one, each time at most as long as `patience` then says; nothing when that is over, and once it
  // is stopped and nothing is left. What was cancelled is always wanted. Both functions are called under the mutex, with each look.
  using WantedNow = absl::FunctionRef<Wanted()>;
  using Patience = absl::FunctionRef<absl::Duration()>;
  std::optional<Claim> Next(WantedNow wanted_now, Patience patience);
  std::optional<Claim> Next() {
    return Next([] { return Wanted{}; }, [] { return absl::InfiniteDuration(); });
  }
  // Of a copy that is quiet: forgets it.
  void Forget(OpId op);

  // Whether it is stopped and all units are claimed.
  bool over() const;

 private:
  // Units [next_unit, end_unit) of a copy, that nobody has claimed.
  struct Waiting {
    std::shared_ptr<RunningCopy> copy;
    uint64_t next_unit = 0;
    uint64_t end_unit = 0;
  };
  // Units [next, end) of a copy, each of which lacks something as long as the one before it does.
  struct Run {
    uint64_t next = 0;
    uint64_t end = 0;
  };
  // A copy with units that lack something, in their order.
  struct Stream {
    std::shared_ptr<RunningCopy> copy;
    std::vector<Run> left;
  };

  std::deque<Waiting>& QueueOf(const RunningCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return copy.direction() == Direction::kLoad ? loads_ : stores_;
  }
  Claim ClaimFrom(std::deque<Waiting>& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is left of a stream is to be skipped.
  std::list<Stream>::iterator Drop(std::list<Stream>::iterator stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A look at all streams: from here on what comes is seen, or counted.
  void BeginLook() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets those units of streams be claimed that lack nothing, as far as it comes with a bounded number of runs; to_sift_ says what is left to do.
  void Sift() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t TakeReady(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Sleepers sleepers_ ABSL_GUARDED_BY(mutex_);            // for something to claim, or stopping_
  std::deque<Waiting> dropped_ ABSL_GUARDED_BY(mutex_);  // cancelled copies, to be skipped
  std::deque<Waiting> loads_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiting> stores_ ABSL_GUARDED_BY(mutex_);
  std::list<Stream> streams_ ABSL_GUARDED_BY(mutex_);  // in the order of their turns
  size_t to_sift_ ABSL_GUARDED_BY(mutex_) = 0;         // of them, from the first: the look hasn't come to them
  uint64_t looked_from_ ABSL_GUARDED_BY(mutex_) = 0;   // what arrived_ was when the look began
  uint64_t fewest_ ABSL_GUARDED_BY(mutex_) = kNever;   // that a unit lacked, of those looked at
  absl::flat_hash_map<uint64_t, std::shared_ptr<RunningCopy>> copies_ ABSL_GUARDED_BY(mutex_);  // by OpId; not yet quiet
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Whoever ends a look sets look_at_, then reads arrived_; whoever arrives does it the other way round. In the one order of all four (seq_cst) one of
  // them sees the other's. During a look it is kNever: the look's end sees all that came meanwhile.
  static constexpr uint64_t kNever = UINT64_MAX;
  std::atomic<uint64_t> arrived_{0};
  std::atomic<uint64_t> look_at_{kNever};
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_COPY_QUEUE_H_
