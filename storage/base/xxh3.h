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

#endif  // KVIST_STORAGE_BASE_XXH3_H_
