#ifndef KVIST_CUDA_BUS_CLAIMS_H_
#define KVIST_CUDA_BUS_CLAIMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cuda/copy_engine.h"

namespace kvist::cuda {

// Whether stores should leave a GPU's bus to its engines just now: while one of them claims it (an all-reduce between GPUs without a link of
// their own), but not for ever. Loads never wait: somebody waits for them.
//
// Pure: times are passed in. Threads: Add from any, StoresWait from one.
class BusClaims {
 public:
  // Stores are held back for so long in a row at most, and have the bus as long then: an engine that claims it always, or again before each claim
  // ends, must not keep others' (and its own) chunks out of the cache. Some layers of a forward pass; not measured.
  static constexpr absl::Duration kMost = absl::Milliseconds(100);

  // Who may claim the bus, from its first copy on; kept while somebody else keeps it.
  void Add(const std::shared_ptr<const BusClaim>& claim);
  // How long stores had better wait; zero: not at all.
  absl::Duration StoresWait(int64_t now_nanos);

 private:
  int64_t ClaimedUntil() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::vector<std::weak_ptr<const BusClaim>> claims_ ABSL_GUARDED_BY(mutex_);
  int64_t held_since_nanos_ = 0;     // the row began then; 0: there is none
  int64_t claimed_until_nanos_ = 0;  // as it was said or seen last
  int64_t stores_until_nanos_ = 0;   // it is their turn
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_BUS_CLAIMS_H_
