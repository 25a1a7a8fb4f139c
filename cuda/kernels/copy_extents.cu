// Copies extents between any memory that the GPU reaches: its own, and host memory that is pinned and mapped. Compiled to sm_80, sm_90, sm_100
// and PTX, and embedded in kvistd (kernels.h).
#include <cstdint>

namespace {

struct Extent {
  char* to;
  const char* from;
  uint64_t size;
};

// A block's threads copy [0, size) in words of T; what is left of it is copied byte by byte.
template <class T>
__device__ void CopyWords(const Extent& extent) {
  const uint64_t words = extent.size / sizeof(T);
  T* to = reinterpret_cast<T*>(extent.to);
  const T* from = reinterpret_cast<const T*>(extent.from);
  // Four in flight for each thread: a word of host memory takes a microsecond or more.
  uint64_t word = threadIdx.x;
  for (; word + 3 * blockDim.x < words; word += 4 * blockDim.x) {
    const T a = from[word], b = from[word + blockDim.x], c = from[word + 2 * blockDim.x], d = from[word + 3 * blockDim.x];
    to[word] = a;
    to[word + blockDim.x] = b;
    to[word + 2 * blockDim.x] = c;
    to[word + 3 * blockDim.x] = d;
  }
  for (; word < words; word += blockDim.x) to[word] = from[word];
  for (uint64_t byte = words * sizeof(T) + threadIdx.x; byte < extent.size; byte += blockDim.x)
    extent.to[byte] = extent.from[byte];
}

}  // namespace

// Blocks take extents in turn.
extern "C" __global__ void kvist_copy_extents(const Extent* extents, uint32_t count) {
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Extent extent = extents[i];
    const uint64_t bits = reinterpret_cast<uint64_t>(extent.to) | reinterpret_cast<uint64_t>(extent.from);
    if (bits % 16 == 0) {
      CopyWords<uint4>(extent);
    } else if (bits % 4 == 0) {
      CopyWords<uint32_t>(extent);
    } else {
      CopyWords<char>(extent);
    }
  }
}
