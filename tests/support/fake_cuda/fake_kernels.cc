#include "tests/support/fake_cuda/fake_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace kvist::fake_cuda {
namespace {

// cuda/kernels/copy_extents.cu.
std::function<void()> CopyExtents(void** parameters) {
  struct Piece {
    uint64_t to, from, size;
  };
  const auto* entries = *static_cast<const Piece* const*>(parameters[0]);
  const auto count = *static_cast<const uint32_t*>(parameters[1]);
  const auto parts = *static_cast<const uint32_t*>(parameters[2]);
  return [entries, count, parts] {
    constexpr uint64_t kPartBytes = 4096;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t size = std::min(entries[i].size, parts * kPartBytes);  // what is left, a kernel leaves, too
      std::memcpy(reinterpret_cast<void*>(entries[i].to), reinterpret_cast<const void*>(entries[i].from), size);
    }
  };
}

constexpr KernelOnHost kKernels[] = {{"kvist_copy_extents", &CopyExtents}};

}  // namespace

const KernelOnHost* FindKernel(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kKernels), std::end(kKernels), [&](const KernelOnHost& k) { return k.name == name; });
  return found == std::end(kKernels) ? nullptr : found;
}

}  // namespace kvist::fake_cuda
