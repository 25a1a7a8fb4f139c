#include "cuda/kernels/kernels.h"

namespace kvist::cuda {

std::span<const std::byte> KernelImage() { return {}; }

}  // namespace kvist::cuda
