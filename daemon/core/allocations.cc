#include "daemon/core/allocations.h"

#include <algorithm>

namespace kvist::core {

bool Swaps::Busy(const SwapRange& range) const {
  return std::ranges::any_of(running_, [&](const Running& running) { return running.range.Conflicts(range); });
}

void Swaps::Begin(OpId op, const SwapRange& range) {
  if (range.out) SetWritten(range, false);
  running_.push_back({op, range});
}

void Swaps::End(OpId op, bool complete) {
  const auto found = std::ranges::find(running_, op, &Running::op);
  if (found == running_.end()) return;
  if (found->range.out && complete) SetWritten(found->range, true);
  running_.erase(found);
}

bool Swaps::Written(const SwapRange& range) const {
  for (uint32_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
    const auto at = written_.begin() + static_cast<std::ptrdiff_t>(At(range, chunk));
    if (std::find(at, at + range.layers, false) != at + range.layers) return false;
  }
  return true;
}

void Swaps::SetWritten(const SwapRange& range, bool written) {
  for (uint32_t chunk = range.first; chunk < range.first + range.count; ++chunk)
    std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(At(range, chunk)), range.layers, written);
}

}  // namespace kvist::core
