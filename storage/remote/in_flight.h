#ifndef KVIST_STORAGE_REMOTE_IN_FLIGHT_H_
#define KVIST_STORAGE_REMOTE_IN_FLIGHT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/mutex.h"
#include "storage/remote/remote_store.h"

namespace kvist::remote {

// What a store has accepted and not ended, held to its limits. Threads: any.
class InFlight {
 public:
  explicit InFlight(Limits limits) : limits_(limits) {}

  // Room for all of the batch, or ResourceExhausted and nothing is taken. A batch that is larger than the limits never has room.
  absl::Status Take(const Load& load) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(const Load& load) ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Limits limits_;
  mutable Mutex mutex_;
  Load load_ ABSL_GUARDED_BY(mutex_);
};

Load LoadOf(const Batch& batch);

// What Submit says while a store is destroyed.
absl::Status BeingClosed();

// A batch on its way: operations end one by one, in any order, and with the last of them the batch is done.
//
// Invariants: each operation ends once; the room in `in_flight` is given back before `done` is called, so that whoever hears of an end may
//   Submit as much again. Threads: one at a time.
class RunningBatch {
 public:
  // `in_flight` has taken the batch's load, and outlives this.
  RunningBatch(Batch batch, Done done, InFlight* in_flight);
  ~RunningBatch();  // stops the process when it isn't done

  const Batch& batch() const { return batch_; }
  const Operation& operation(size_t i) const { return batch_.operations[i]; }
  bool ended(size_t i) const { return ended_[i]; }
  bool done() const { return left_ == 0; }
  // true: that was the last one, and Announce is to be called, by a thread that holds no lock.
  [[nodiscard]] bool End(size_t i, Outcome outcome);
  void Announce();
  // Instead of all that: it wasn't accepted after all, its room is given back and `done` never called.
  void Refuse();

 private:
  Batch batch_;
  Done done_;
  InFlight* const in_flight_;
  const Load load_;
  std::vector<Outcome> outcomes_;
  std::vector<bool> ended_;
  size_t left_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_IN_FLIGHT_H_
