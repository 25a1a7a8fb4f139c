#ifndef KVIST_CUDA_SLOT_ARRIVAL_H_
#define KVIST_CUDA_SLOT_ARRIVAL_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace kvist::cuda {

// How much of what is being read into a slot is there: so many layers, from the first. Loads take what is there (Copy::arrivals).
//
// Lifecycle: nothing is there -> Arrived, any number of times -> End, once: all of it is, or the rest never will be.
// Threads: whoever reads says so, one call after the other; any number look. What was written before Arrived or End is seen by who
//   has heard of it.
class SlotArrival {
 public:
  void Arrived(uint32_t layers) { layers_.store(layers, std::memory_order_release); }
  void End(absl::Status status) {
    failure_ = std::move(status);
    layers_.store(failure_.ok() ? kAll : kFailed, std::memory_order_release);
  }

  // Whether the first `layers` layers are there, or nothing more will be.
  bool Settled(uint32_t layers) const { return layers_.load(std::memory_order_acquire) >= layers; }
  bool failed() const { return layers_.load(std::memory_order_acquire) == kFailed; }
  // Why not all of it will be there, or OK.
  absl::Status status() const { return failed() ? failure_ : absl::OkStatus(); }

 private:
  static constexpr uint32_t kFailed = UINT32_MAX;
  static constexpr uint32_t kAll = UINT32_MAX - 1;
  std::atomic<uint32_t> layers_{0};
  absl::Status failure_;  // written before kFailed is
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SLOT_ARRIVAL_H_
