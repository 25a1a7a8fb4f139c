#ifndef KVIST_CUDA_NONTEMPORAL_COPY_H_
#define KVIST_CUDA_NONTEMPORAL_COPY_H_

#include <cstddef>
#include <string_view>
#include <vector>

namespace kvist::cuda {

// Copies that bypass the cache on the writing side and fetch ahead on the reading side: for bytes that nobody on this CPU
// reads soon.
//
// CopyNontemporal copies `length` bytes; the areas must not overlap. `next` is where the caller will read after this area
//   (it may be any address, also null or an invalid one: it is only prefetched), so that the first lines of the next area
//   are already coming.
// Alignment: any. Whole 64-byte lines of the destination are written by non-temporal stores, the rest by ordinary ones.
// Order:   non-temporal stores are not ordered with later ones. FenceNontemporal, on the thread that copied, before anything
//   is published that says the bytes are there.
// Threads: any. Variant: the widest that this CPU has (AVX-512, AVX2, SSE2), fetching ahead to where it is fastest on it (README.md), chosen once.
void CopyNontemporal(std::byte* to, const std::byte* from, size_t length, const std::byte* next);
void FenceNontemporal();

// What CopyNontemporal chooses from: the variants that this CPU can run, the chosen one first. For tests.
struct NontemporalVariant {
  std::string_view name;
  void (*copy)(std::byte* to, const std::byte* from, size_t length, const std::byte* next);
};
std::vector<NontemporalVariant> SupportedNontemporalVariants();

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_NONTEMPORAL_COPY_H_
