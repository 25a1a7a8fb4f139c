#ifndef KVIST_CUDA_SLOT_CHECKSUMS_H_
#define KVIST_CUDA_SLOT_CHECKSUMS_H_

#include <cstddef>

#include "cuda/kv_memory.h"
#include "storage/base/ids.h"

namespace kvist::cuda {

// A shard's checksums, one for each layer, because loads may ask for some layers only: in the slot's header place, as
// storage/pool/slot_header.h draws it.
//
// `slot` is where the slot starts; `layer` counts from the layout's first. Threads: any, one at a time for a layer of a slot.
void WriteChecksum(std::byte* slot, const KvLayout& layout, LayerIndex layer);
bool ChecksumMatches(const std::byte* slot, const KvLayout& layout, LayerIndex layer);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SLOT_CHECKSUMS_H_
