#ifndef KVIST_CUDA_KERNELS_KERNELS_H_
#define KVIST_CUDA_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvist::cuda {

// What kvist_copy_extents copies: [from, from + size) to `to`. As it lies in the array that the kernel reads.
struct KernelExtent {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t size = 0;
};
// (const KernelExtent* extents, uint32_t count, uint32_t parts): a warp takes one part of an extent at a time; the largest one has so many.
inline constexpr char kCopyExtents[] = "kvist_copy_extents";
inline constexpr uint32_t kKernelPartBytes = 4096;

// The compiled kernels for cuModuleLoadData: code for sm_80, sm_90 and sm_100, and PTX for what comes later. Empty when kvist was built without nvcc.
std::span<const std::byte> KernelImage();

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_KERNELS_KERNELS_H_
