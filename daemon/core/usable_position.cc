#include "daemon/core/usable_position.h"

#include <algorithm>

namespace kvist::core {

uint32_t UsablePosition::Reach(std::span<const GroupSpec> groups, uint32_t keys, uint32_t work) {
  const auto cost = [groups](uint32_t position) {
    uint64_t sum = 0;
    for (const GroupSpec& group : groups) {
      // In a full group a lease keeps one chunk only; elsewhere each is found, kept and let go.
      sum += group.reuse.chained() ? position : 3 * uint64_t{position - group.reuse.FirstNeeded(position)};
    }
    return sum;
  };
  const uint64_t most = uint64_t{work} / 4 * 3;
  if (cost(keys) <= most) return keys;
  uint32_t low = 1, high = keys;  // the first key is always looked at; the cost of `high` is too much
  while (low + 1 < high) {
    const uint32_t middle = low + (high - low) / 2;
    (cost(middle) <= most ? low : high) = middle;
  }
  return low;
}

uint32_t UsablePosition::Find(SpaceId space, uint32_t epoch, std::span<const GroupSpec> groups,
                              std::span<const ChunkKey> keys) {
  space_ = space;
  epoch_ = epoch;
  groups_ = groups;
  keys_ = keys;
  if (places_.size() < groups.size()) places_.resize(groups.size());
  const uint64_t start = chunks_.work();
  uint32_t position = Reach(groups, static_cast<uint32_t>(keys.size()), work_);
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
      if (!groups[g].reuse.chained()) places_[g].resize(position);
    }
    low_.assign(count, position);
    until_ = std::max(start + work_, chunks_.work() + others);
  }
  others_ = others;
  position_ = PullBack(position);
  return position_;
}

std::optional<uint32_t> UsablePosition::Shorten(uint32_t end) {
  until_ = chunks_.work() + std::max<uint32_t>(work_ / 8, 1);
  const uint32_t shorter = PullBack(end);
  if (shorter == 0 && end > 0 && chunks_.work() >= until_) return std::nullopt;
  position_ = shorter;
  return shorter;
}

uint32_t UsablePosition::PullBack(uint32_t end) {
  const auto count = static_cast<uint16_t>(groups_.size());
  uint16_t content = 0;
  for (uint16_t g = 0; end > 0 && content < others_; g = static_cast<uint16_t>((g + 1) % count)) {
    if (groups_[g].reuse.chained()) continue;
    const uint32_t usable = LastUsable(GroupId{g}, end);
    content = usable == end ? static_cast<uint16_t>(content + 1) : uint16_t{1};
    end = usable;
  }
  return end;
}

std::span<const ChunkIndex> UsablePosition::needed(GroupId group) const {
  const uint32_t first = groups_[group.value].reuse.FirstNeeded(position_);
  return std::span(places_[group.value]).subspan(first, position_ - first);
}

uint32_t UsablePosition::LastUsable(GroupId group, uint32_t end) {
  const ReuseRule& reuse = groups_[group.value].reuse;
  uint32_t& low = low_[group.value];
  low = std::min(low, end);
  while (low > reuse.FirstNeeded(end)) {
    if (chunks_.work() >= until_) return 0;
    const ChunkIndex place = chunks_.FindVisible(space_, group, epoch_, keys_[--low]);
    places_[group.value][low] = place;
    if (place == kNoChunk) end = low;
  }
  return end;
}

}  // namespace kvist::core
