#ifndef KVIST_STORAGE_BASE_XXH3_H_
#define KVIST_STORAGE_BASE_XXH3_H_

// The checksum of everything that kvist keeps or sends: XXH3, 64 bits. Include this and not <xxhash.h>: its functions take the widest instructions that
// the processor has, where those of <xxhash.h> alone take what every x86-64 has. The values are the same, the speed is not: 10.5 GB/s beside 7.8 of
// layers of 32 KiB that lie in memory (Xeon with AVX-512, 2026-11-25).
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#endif  // KVIST_STORAGE_BASE_XXH3_H_
