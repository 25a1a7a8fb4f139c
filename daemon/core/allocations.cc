#include "daemon/core/allocations.h"

#include <algorithm>

namespace kvist::core {

template <class F>
void Swaps::ForEachWord(const SwapRange& range, F f) const {
  const uint32_t end = range.first_layer + range.layers;
  for (uint32_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
    for (uint32_t word = range.first_layer / 64; word * 64 < end; ++word) {
      uint64_t mask = ~uint64_t{0};
      if (word * 64 < range.first_layer) mask <<= range.first_layer - word * 64;
      if (end - word * 64 < 64) mask &= (uint64_t{1} << (end - word * 64)) - 1;
      f(At(range, chunk) + word, mask);
    }
  }
}

bool Swaps::Busy(const SwapRange& range) const {
  return std::ranges::any_of(running_, [&](const Running& running) { return running.range.Conflicts(range); });
}

void Swaps::Begin(OpId op, const SwapRange& range) {
  if (range.out) ForEachWord(range, [&](size_t word, uint64_t mask) { written_[word] &= ~mask; });
  running_.push_back({op, range});
}

void Swaps::End(OpId op, bool complete) {
  const auto found = std::ranges::find(running_, op, &Running::op);
  if (found == running_.end()) return;
  if (found->range.out && complete) {
    ForEachWord(found->range, [&](size_t word, uint64_t mask) { written_[word] |= mask; });
  }
  running_.erase(found);
}

bool Swaps::Written(const SwapRange& range) const {
  bool all = true;
  ForEachWord(range, [&](size_t word, uint64_t mask) { all &= (written_[word] & mask) == mask; });
  return all;
}

}  // namespace kvist::core
