#ifndef KVIST_STORAGE_BASE_SHM_PROBE_PATTERN_H_
#define KVIST_STORAGE_BASE_SHM_PROBE_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/base/ids.h"

namespace kvist::shm {

// What the engine writes into a page when kvistd asks for proof that the page lies where it was described: bytes that nobody
// has by chance, different for every nonce, layer and page. Both sides compute them. `out` is the page from its byte `from` on, a multiple of 8.
void FillProbePattern(uint64_t nonce, LayerIndex layer, PageId page, std::span<std::byte> out, uint64_t from = 0);

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_PROBE_PATTERN_H_
