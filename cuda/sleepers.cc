#include "cuda/sleepers.h"

#include <sched.h>

#include <algorithm>

namespace kvist::cuda {

bool Sleepers::Sleep(absl::Mutex* mutex, absl::Duration at_most) {
  if (free_.empty()) free_.push_back(&beds_.emplace_back());
  Bed* const bed = free_.back();
  free_.pop_back();
  bed->cpu = sched_getcpu();
  bed->called = false;
  asleep_.push_back(bed);
  const bool late = bed->bell.WaitWithTimeout(mutex, at_most);
  if (!bed->called) asleep_.erase(std::find(asleep_.begin(), asleep_.end(), bed));
  free_.push_back(bed);
  return !late || bed->called;
}

Sleepers::Called Sleepers::Call(uint64_t threads) {
  Called called;
  if (asleep_.empty()) return called;
  const int cpu = sched_getcpu();
  for (; threads > 0 && !asleep_.empty(); --threads) {
    const auto elsewhere = std::find_if(asleep_.begin(), asleep_.end(), [cpu](const Bed* bed) { return bed->cpu != cpu; });
    const auto chosen = elsewhere != asleep_.end() ? elsewhere : asleep_.begin();
    (*chosen)->called = true;
    called.push_back(&(*chosen)->bell);
    asleep_.erase(chosen);
  }
  return called;
}

}  // namespace kvist::cuda
