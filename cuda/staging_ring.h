#ifndef KVIST_CUDA_STAGING_RING_H_
#define KVIST_CUDA_STAGING_RING_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/gpu.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// GPU memory of kvistd's own, taken in spans that are given back in the order in which they were taken.
//
// Threads: one, with the GPU's context current; also to make and to destroy.
class StagingRing {
 public:
  // Errors: ResourceExhausted  the GPU has no memory left. Others of the driver's.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Make(Gpu* gpu, Bytes size);
  ~StagingRing();  // nothing on the device uses it

  // A span of `size` bytes, aligned to 256; 0: there is none until others are given back, or ever.
  driver::Address Take(Bytes size);
  void GiveBack();  // the oldest

 private:
  struct Span {
    uint64_t first = 0, end = 0;
  };
  StagingRing(Gpu* gpu, Bytes size) : gpu_(gpu), size_(size.value) {}

  Gpu* const gpu_;
  const uint64_t size_;
  driver::Address base_ = 0;
  std::deque<Span> taken_;  // oldest first
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_STAGING_RING_H_
