#include "cuda/kernels/kernels.h"

extern "C" {
extern const unsigned char kvist_kernel_image[];  // bin2c's; aligned as the driver wants it
extern const unsigned long kvist_kernel_image_bytes;
}

namespace kvist::cuda {

std::span<const std::byte> KernelImage() {
  return {reinterpret_cast<const std::byte*>(kvist_kernel_image), kvist_kernel_image_bytes};
}

}  // namespace kvist::cuda
