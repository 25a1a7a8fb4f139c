#ifndef KVIST_STORAGE_POOL_SLOT_HEADER_H_
#define KVIST_STORAGE_POOL_SLOT_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/base/units.h"

// What lies before a slot's payload, in DRAM and on every disk:
//
//   | 512 bytes: what it is, and where; storage/ssd fills it | checksum of layer 0 | layer 1 | ... | layer 447 | payload ...
//     0                                                        512                   520             4088        4096
//
// A checksum is 8 bytes, little-endian. It needs none of its own: when it is what has changed, it doesn't match either.
namespace kvist {

inline constexpr Bytes kSlotHeaderBytes = kPageOfMemory;  // so that the payload begins where direct I/O may begin
inline constexpr Bytes kSlotChecksumsAt{512};
inline constexpr uint32_t kSlotLayersMax = 448;  // real models have 130
static_assert(kSlotChecksumsAt.value + kSlotLayersMax * sizeof(uint64_t) == kSlotHeaderBytes.value);

// Of one layer's bytes: XXH3-64, seeded with the layer, so that two layers of the same bytes aren't taken for each other.
uint64_t LayerChecksum(std::span<const std::byte> bytes, uint32_t layer);

// Puts the layer's checksum where it belongs. / Whether what lies there is that of these bytes. Threads: any, one at a time for a layer.
void PutLayerChecksum(std::byte* slot, uint32_t layer, std::span<const std::byte> bytes);
bool LayerMatches(const std::byte* slot, uint32_t layer, std::span<const std::byte> bytes);

}  // namespace kvist

#endif  // KVIST_STORAGE_POOL_SLOT_HEADER_H_
