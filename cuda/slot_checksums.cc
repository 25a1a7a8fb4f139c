#include "cuda/slot_checksums.h"

#include <span>

namespace kvist::cuda {
namespace {

std::span<const std::byte> RunOf(const std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  const uint64_t bytes = layout.layer_bytes().value;
  return {slot + kSlotHeaderBytes.value + layer.value * bytes, bytes};
}

}  // namespace

void WriteChecksum(std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  PutLayerChecksum(slot, layer.value, RunOf(slot, layout, layer));
}

bool ChecksumMatches(const std::byte* slot, const KvLayout& layout, LayerIndex layer) {
  return LayerMatches(slot, layer.value, RunOf(slot, layout, layer));
}

}  // namespace kvist::cuda
