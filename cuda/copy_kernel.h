#ifndef KVIST_CUDA_COPY_KERNEL_H_
#define KVIST_CUDA_COPY_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/gpu.h"
#include "cuda/kernels/kernels.h"

namespace kvist::cuda {

// kvist's own kernel on one GPU, which scatters and gathers pages that are too small for DMA. On few SMs, but without MPS it takes turns with the
// engine's kernels all the same.
//
// Threads: one, with the GPU's context current; also to destroy.
class CopyKernel {
 public:
  // Enough to be no part of what a copy takes (cuda/README.md); 4 reach the bus's speed, too.
  static constexpr uint32_t kBlocks = 16;
  static constexpr uint32_t kThreads = 512;
  static constexpr size_t kExtentsMax = 4096;  // of a launch

  // Errors: Unimplemented  kvist was built without nvcc, or this GPU doesn't reach pinned host memory by the host's addresses. Those of the driver.
  static absl::StatusOr<std::unique_ptr<CopyKernel>> Load(const Gpu* gpu);
  ~CopyKernel();

  // Extents that the kernel reads while it runs: filled by the host, then given to a launch, then used again when that is over.
  class Extents {
   public:
    ~Extents();
    KernelExtent* data() { return extents_.data(); }

   private:
    friend class CopyKernel;
    explicit Extents(const Gpu* gpu) : gpu_(gpu), extents_(kExtentsMax) {}
    const Gpu* gpu_;
    std::vector<KernelExtent> extents_;
    bool pinned_ = false;
    driver::Address address_ = 0;  // for the GPU
  };
  // Errors: those of the driver.
  absl::StatusOr<std::unique_ptr<Extents>> MakeExtents() const;

  // The first `count` of them, when the stream comes to it. Host memory in them is pinned. Errors: those of the driver.
  absl::Status Launch(driver::Stream stream, const Extents& extents, uint32_t count) const;

 private:
  explicit CopyKernel(const Gpu* gpu) : gpu_(gpu) {}

  const Gpu* const gpu_;
  driver::Module module_ = nullptr;
  driver::Function function_ = nullptr;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_COPY_KERNEL_H_
