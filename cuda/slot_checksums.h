#ifndef KVIST_CUDA_SLOT_CHECKSUMS_H_
#define KVIST_CUDA_SLOT_CHECKSUMS_H_

#include <cstddef>
#include <cstdint>

#include "cuda/kv_memory.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// A shard's checksums, one for each layer, because loads may ask for some layers only. They lie in the slot's header place:
//
//   | 512 bytes: storage/ssd's | layer 0 | layer 1 | ... | layer 447 | payload: [layer][layer_bytes] ...
//     0                          512       520             4088        4096
//
// A layer's is XXH3-64 over its run, seeded with its number; 8 bytes, little-endian. It needs no checksum of its own: when it is what has
// changed, it doesn't match either.
inline constexpr Bytes kSlotChecksumsAt{512};
static_assert(kSlotChecksumsAt.value + KvLayout::kLayersMax * sizeof(uint64_t) == kSlotHeaderBytes.value);

// `slot` is where the slot starts; `layer` counts from the layout's first. Threads: any, one at a time for a layer of a slot.
void WriteChecksum(std::byte* slot, const KvLayout& layout, LayerIndex layer);
bool ChecksumMatches(const std::byte* slot, const KvLayout& layout, LayerIndex layer);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SLOT_CHECKSUMS_H_
