// Copies extents between any memory that the GPU reaches. Compiled to sm_80, sm_90, sm_100 and PTX, and embedded in kvistd (kernels.h).
#include <cstdint>

namespace {

struct Extent {
  char* to;
  const char* from;
  uint64_t size;
};

constexpr uint32_t kLanes = 32;
constexpr uint32_t kPartBytes = 4096;  // of an extent, for one warp; a multiple of every T below
constexpr uint32_t kInFlight = 8;      // words of a lane: with 16 bytes a part is all in flight at once

// A warp copies [0, size) in words of T; what is left of it is copied byte by byte.
template <class T>
__device__ void CopyWords(char* to, const char* from, uint32_t size) {
  const uint32_t lane = threadIdx.x % kLanes, words = size / sizeof(T);
  T* to_words = reinterpret_cast<T*>(to);
  const T* from_words = reinterpret_cast<const T*>(from);
  uint32_t word = lane;
  for (; word + (kInFlight - 1) * kLanes < words; word += kInFlight * kLanes) {
    T some[kInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) some[i] = from_words[word + i * kLanes];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) to_words[word + i * kLanes] = some[i];
  }
  for (; word < words; word += kLanes) to_words[word] = from_words[word];
  for (uint32_t byte = words * sizeof(T) + lane; byte < size; byte += kLanes) to[byte] = from[byte];
}

}  // namespace

// Warps take parts of extents in turn; the largest extent has `parts`.
extern "C" __global__ void kvist_copy_extents(const Extent* extents, uint32_t count, uint32_t parts) {
  const uint64_t warps = uint64_t{gridDim.x} * (blockDim.x / kLanes);
  for (uint64_t at = uint64_t{blockIdx.x} * (blockDim.x / kLanes) + threadIdx.x / kLanes; at < uint64_t{count} * parts; at += warps) {
    const Extent extent = extents[at / parts];
    const uint64_t first = at % parts * kPartBytes;
    if (first >= extent.size) continue;
    char* to = extent.to + first;
    const char* from = extent.from + first;
    const uint64_t rest = extent.size - first;
    const uint32_t size = rest < kPartBytes ? static_cast<uint32_t>(rest) : kPartBytes;
    const uint64_t bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
    if (bits % 16 == 0) {
      CopyWords<uint4>(to, from, size);
    } else if (bits % 4 == 0) {
      CopyWords<uint32_t>(to, from, size);
    } else {
      CopyWords<char>(to, from, size);
    }
  }
}
