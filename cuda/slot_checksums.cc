#include "cuda/slot_checksums.h"

#include <xxhash.h>

#include <cstring>

namespace kvist::cuda {
namespace {

size_t PlaceOf(LayerIndex layer) { return kSlotChecksumsAt.value + layer.value * sizeof(uint64_t); }

uint64_t Compute(const std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  const uint64_t bytes = layout.layer_bytes().value;
  return XXH3_64bits_withSeed(slot + kSlotHeaderBytes.value + layer.value * bytes, bytes, layer.value);
}

}  // namespace

void WriteChecksum(std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  const uint64_t checksum = Compute(slot, layout, layer);
  std::memcpy(slot + PlaceOf(layer), &checksum, sizeof checksum);
}

bool ChecksumMatches(const std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  uint64_t stored = 0;
  std::memcpy(&stored, slot + PlaceOf(layer), sizeof stored);
  return stored == Compute(slot, layout, layer);
}

}  // namespace kvist::cuda
