#ifndef KVIST_CUDA_SLOT_ARRIVAL_H_
#define KVIST_CUDA_SLOT_ARRIVAL_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace kvist::cuda {

// How much of what is being read into a slot is there: so many layers, from the first. Loads take what is there (Copy::arrivals), and say what
// they lack, so that a copy engine hears of that and not of each run that has come.
//
// Lifecycle: nothing is there -> Arrived, any number of times -> End, once: all of it is, or the rest never will be.
// Threads: whoever reads says so, one call after the other; any number look. What was written before Arrived or End is seen by who
//   has heard of it.
//   Lacks: a reader raises `layers_`, then looks at `lacked_`; one who lacks something lowers `lacked_`, then looks at `layers_`. In the one
//   order of all four (seq_cst) one of the two sees the other.
class SlotArrival {
 public:
  // True: somebody lacked some of it, and is to hear of it (CopyEngine::Arrived). That is forgotten then.
  [[nodiscard]] bool Arrived(uint32_t layers) {
    layers_.store(layers);
    for (uint32_t lacked = lacked_.load(); lacked <= layers;) {
      if (lacked_.compare_exchange_weak(lacked, kNothing)) return true;
    }
    return false;
  }
  [[nodiscard]] bool End(absl::Status status) {
    failure_ = std::move(status);
    return Arrived(failure_.ok() ? kAll : kFailed);
  }

  // Whether the first `layers` layers are there, or nothing more will be.
  bool Settled(uint32_t layers) const { return layers_.load(std::memory_order_acquire) >= layers; }
  // The same; when they aren't, Arrived says that they are lacked.
  bool SettledOrLacked(uint32_t layers) {
    if (Settled(layers)) return true;
    for (uint32_t lacked = lacked_.load(); layers < lacked && !lacked_.compare_exchange_weak(lacked, layers);) {}
    return layers_.load() >= layers;
  }
  bool failed() const { return layers_.load(std::memory_order_acquire) == kFailed; }
  // Why not all of it will be there, or OK.
  absl::Status status() const { return failed() ? failure_ : absl::OkStatus(); }

 private:
  static constexpr uint32_t kFailed = UINT32_MAX - 1;
  static constexpr uint32_t kAll = UINT32_MAX - 2;
  static constexpr uint32_t kNothing = UINT32_MAX;
  std::atomic<uint32_t> layers_{0};
  std::atomic<uint32_t> lacked_{kNothing};  // the fewest that somebody lacks
  absl::Status failure_;                    // written before kFailed is
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SLOT_ARRIVAL_H_
