#include "daemon/core/left_index.h"

#include <cstring>
#include <utility>

namespace kvist::core {

LeftIndex::LeftIndex(std::span<const pool::SectionsOfFile::Section> sections) {
  bool spaces_end = false, chunks_end = false;
  std::array<bool, Spaces::kRanksMax + 1> runs_end{};
  for (const pool::SectionsOfFile::Section& section : sections) {
    const std::byte* const start = section.bytes.data();
    switch (static_cast<ImageSection>(section.kind)) {
      case ImageSection::kSpace: spaces_end = spaces_end || !TakeSpace(section.bytes); break;
      case ImageSection::kChunks:
        chunks_end |=
            section.bytes.size() != sizeof(Chunk) * kChunksPerSection || chunks_.size() == kNoChunk / kChunksPerSection;
        if (!chunks_end) chunks_.push_back(reinterpret_cast<const Chunk*>(start));
        break;
      case ImageSection::kSlotRuns: {
        const uint32_t shards = section.detail;
        if (shards > Spaces::kRanksMax) break;
        runs_end[shards] |= section.bytes.size() != sizeof(SlotRef) * shards * kRunsPerSection;
        if (!runs_end[shards]) runs_[shards].push_back(reinterpret_cast<const SlotRef*>(start));
        break;
      }
      case ImageSection::kPlaceRuns: break;
      case ImageSection::kResting:
        for (size_t at = 0; at + sizeof(RestingSlot) <= section.bytes.size(); at += sizeof(RestingSlot)) {
          RestingSlot slot;
          std::memcpy(&slot, start + at, sizeof slot);
          if (slot.rests == 1) resting_.push_back(slot);
        }
        break;
    }
  }
  for (ChunkIndex i = 0; i < places(); ++i) {
    const Chunk& chunk = (*this)[i];
    if (chunk.has_slots() && chunk.space.value < spaces_.size()) spaces_[chunk.space.value].has_slots = true;
  }
}

bool LeftIndex::TakeSpace(std::span<const std::byte> section) {
  SpaceRow row;
  if (section.size() < sizeof row || spaces_.size() == Spaces::kSpacesMax) return false;
  std::memcpy(&row, section.data(), sizeof row);
  const size_t sizes_bytes = size_t{row.sizes} * sizeof(uint64_t);
  if (section.size() != sizeof row + sizes_bytes + row.description_bytes) return false;
  std::vector<uint64_t> sizes(row.sizes);
  std::memcpy(sizes.data(), section.data() + sizeof row, sizes_bytes);
  Space space;
  space.digest = row.digest;
  space.epoch = row.epoch;
  for (size_t at = 0; at < sizes.size();) {
    const uint64_t shards = sizes[at++];
    if (shards == 0 || shards > Spaces::kRanksMax || shards > sizes.size() - at) return false;
    std::vector<Bytes>& group = space.slot_bytes.emplace_back();
    for (uint64_t s = 0; s < shards; ++s) group.push_back({sizes[at++]});
  }
  const std::byte* const description = section.data() + sizeof row + sizes_bytes;
  space.description = {reinterpret_cast<const char*>(description), row.description_bytes};
  spaces_.push_back(std::move(space));
  return true;
}

std::span<const Bytes> LeftIndex::SlotBytesOf(const Chunk& chunk) const {
  if (chunk.space.value >= spaces_.size()) return {};
  const std::vector<std::vector<Bytes>>& groups = spaces_[chunk.space.value].slot_bytes;
  if (chunk.group.value >= groups.size()) return {};
  return groups[chunk.group.value];
}

std::span<const SlotRef> LeftIndex::SlotsOf(const Chunk& chunk) const {
  const size_t shards = SlotBytesOf(chunk).size();
  if (shards == 0) return {};
  if (shards == 1) return {&chunk.slot, 1};
  const uint32_t run = chunk.slot.index;
  if (run / kRunsPerSection >= runs_[shards].size()) return {};
  return {runs_[shards][run / kRunsPerSection] + size_t{run % kRunsPerSection} * shards, shards};
}

}  // namespace kvist::core
