#include "storage/pool/slot_header.h"

#include <cstring>

#include "storage/base/xxh3.h"

namespace kvist {
namespace {

size_t PlaceOf(uint32_t layer) { return kSlotChecksumsAt.value + layer * sizeof(uint64_t); }

}  // namespace

uint64_t LayerChecksum(std::span<const std::byte> bytes, uint32_t layer) { return Xxh3OfFar(bytes, layer); }

void PutLayerChecksum(std::byte* slot, uint32_t layer, std::span<const std::byte> bytes) {
  const uint64_t checksum = LayerChecksum(bytes, layer);
  std::memcpy(slot + PlaceOf(layer), &checksum, sizeof checksum);
}

bool LayerMatches(const std::byte* slot, uint32_t layer, std::span<const std::byte> bytes) {
  uint64_t stored = 0;
  std::memcpy(&stored, slot + PlaceOf(layer), sizeof stored);
  return stored == LayerChecksum(bytes, layer);
}

}  // namespace kvist
