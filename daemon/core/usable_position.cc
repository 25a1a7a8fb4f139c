#include "daemon/core/usable_position.h"

namespace kvist::core {
namespace {

constexpr ChunkIndex kNotAsked = kNoChunk - 1;

}  // namespace

uint32_t UsablePosition::Find(SpaceId space, uint32_t epoch, std::span<const GroupSpec> groups,
                              std::span<const ChunkKey> keys) {
  space_ = space;
  epoch_ = epoch;
  groups_ = groups;
  keys_ = keys;
  if (places_.size() < groups.size()) places_.resize(groups.size());
  auto position = static_cast<uint32_t>(keys.size());
  const auto count = static_cast<uint16_t>(groups.size());
  uint16_t others = 0;
  for (uint16_t g = 0; g < count && position > 0; ++g) {
    if (!groups[g].reuse.chained()) {
      ++others;
      continue;
    }
    chunks_.FindPrefix(space, GroupId{g}, epoch, keys.first(position), &places_[g]);
    position = static_cast<uint32_t>(places_[g].size());
  }
  if (others > 0 && position > 0) {
    for (uint16_t g = 0; g < count; ++g) {
      if (!groups[g].reuse.chained()) places_[g].assign(position, kNotAsked);
    }
    // Each group pulls the position back to where it can go on, until none does; each step back is for good.
    uint16_t content = 0;
    for (uint16_t g = 0; position > 0 && content < others; g = static_cast<uint16_t>((g + 1) % count)) {
      if (groups[g].reuse.chained()) continue;
      const uint32_t usable = LastUsable(GroupId{g}, position);
      content = usable == position ? static_cast<uint16_t>(content + 1) : uint16_t{1};
      position = usable;
    }
  }
  position_ = position;
  return position;
}

std::span<const ChunkIndex> UsablePosition::needed(GroupId group) const {
  const uint32_t first = groups_[group.value].reuse.FirstNeeded(position_);
  return std::span(places_[group.value]).subspan(first, position_ - first);
}

uint32_t UsablePosition::LastUsable(GroupId group, uint32_t end) {
  const ReuseRule& reuse = groups_[group.value].reuse;
  for (uint32_t at = end; at > 0; --at) {
    if (!Has(group, at - 1)) {
      end = at - 1;
    } else if (at - 1 == reuse.FirstNeeded(end)) {
      return end;
    }
  }
  return 0;
}

bool UsablePosition::Has(GroupId group, uint32_t position) {
  ChunkIndex& place = places_[group.value][position];
  if (place == kNotAsked) place = chunks_.FindVisible(space_, group, epoch_, keys_[position]);
  return place != kNoChunk;
}

}  // namespace kvist::core
