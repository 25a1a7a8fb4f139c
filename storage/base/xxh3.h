#ifndef KVIST_STORAGE_BASE_XXH3_H_
#define KVIST_STORAGE_BASE_XXH3_H_

// XXH3, 64 bits: the checksum of what kvist keeps and sends, and a hash where nobody chooses the input. Include this and not <xxhash.h>: its functions
// take the widest instructions that the processor has, where those of <xxhash.h> alone take what every x86-64 has. The values are the same, the speed is
// not: 10.5 GB/s beside 7.8, one thread over 256 MiB in pieces of 32 KiB (Xeon with AVX-512, libxxhash 0.8.1, 2026-11-25). Which they are is found out at the first call of
// any thread; those that find it at once write the same.
#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)  // Debian's libxxhash has it; one that is built without dispatching doesn't
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "storage/base/check.h"

namespace kvist {

// The same value, of bytes that are far from the processor, as what a disk or a non-temporal copy has written: they are fetched ahead, across
// the 4 KiB pages at which the hardware's prefetchers stop. 13.7 GB/s beside 10.8 over 512 MiB (Xeon, 2026-11-25; unmeasured on others); of bytes that are near it
// is 35 beside 52.
inline uint64_t Xxh3OfFar(std::span<const std::byte> bytes, uint64_t seed) {
  // What is hashed between two rounds of prefetches, and how far these are ahead. 4 or 8 KiB ahead are the same; pieces of 1 and 4 KiB 13.2, of
  // 8 KiB 10.8: more lines than that at once wait for each other.
  constexpr size_t kLine = 64, kPiece = 2048, kAhead = 4096;
  if (bytes.size() < 4 * kPiece) return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
  thread_local const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  KVIST_CHECK(state != nullptr);
  XXH3_64bits_reset_withSeed(state.get(), seed);
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    // Beyond the end, too, for what comes next: a hint can't fail.
    for (size_t line = 0; line < kPiece; line += kLine) __builtin_prefetch(piece.data() + kAhead + line, 0, 2);
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_XXH3_H_
