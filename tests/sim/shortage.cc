#include "tests/sim/shortage.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "storage/base/check.h"
#include "tests/sim/memory.h"

namespace kvist::sim {

std::vector<SlotRef> Shortage::TakeAll() {
  std::vector<SlotRef> taken;
  const uint32_t first = prng_.Below(kSlotPagesMax);
  for (uint32_t i = 0; i < kSlotPagesMax; ++i) {
    const auto size = slots_.ClassFor(KiB(4 * (1 + (first + i) % kSlotPagesMax)));
    KVIST_CHECK(size.ok());
    while (const std::optional<SlotRef> slot = slots_.Allocate(*size)) taken.push_back(*slot);
  }
  return taken;
}

void Shortage::Begin() {
  KVIST_CHECK(taken_.empty() && left_.empty());
  taken_ = TakeAll();
  const uint32_t leave = std::min<uint32_t>(prng_.Below(kLeftMax + 1), static_cast<uint32_t>(taken_.size()));
  for (uint32_t i = 0; i < leave; ++i) {
    std::swap(prng_.Pick(taken_), taken_.back());
    left_.push_back(taken_.back());
    slots_.Free(taken_.back());
    taken_.pop_back();
  }
}

uint32_t Shortage::End() {
  // A place that nobody has had since it was left free is given out with the next generation, one that came and went with a later one.
  const std::vector<SlotRef> free = TakeAll();
  uint32_t came_and_went = 0;
  for (const SlotRef was : left_) {
    came_and_went += static_cast<uint32_t>(std::ranges::count_if(
        free, [&](SlotRef now) { return now.index == was.index && now.generation > was.generation + 2; }));
  }
  for (const SlotRef slot : free) slots_.Free(slot);
  for (const SlotRef slot : taken_) slots_.Free(slot);
  taken_.clear();
  left_.clear();
  return came_and_went;
}

}  // namespace kvist::sim
