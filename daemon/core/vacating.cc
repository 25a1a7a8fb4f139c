#include "daemon/core/vacating.h"

#include <algorithm>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

bool Vacating::Comes(pool::SlotClass size, uint64_t slots, absl::Time now) {
  Expire(now);
  if (phase_ == Phase::kRests && emptied_.empty() && size != for_) {
    for_ = size;
    demand_ = 0;
  }
  if (size == for_) demand_ = std::min(demand_ + slots, kDemandMax);
  if (phase_ != Phase::kRests || size != for_) return now < until_;
  const std::optional<uint32_t> slab = slots_.Vacatable();
  if (!slab.has_value()) return false;
  slots_.Close(*slab);
  slab_ = *slab;
  next_place_ = 0;
  stuck_ = false;
  until_ = now + kPatience;
  phase_ = Phase::kLooks;
  return true;
}

bool Vacating::Claim(pool::SlotClass size) {
  if (emptied_.empty() || size != for_) return false;
  slots_.Open(emptied_.back(), pool::SlotAllocator::Opened::kFirst);
  emptied_.pop_back();
  demand_ -= std::min(demand_, slots_.SlotsPerSlab(size));
  return true;
}

bool Vacating::WantsMore() const {
  return phase_ == Phase::kRests && demand_ > 0 && demand_ > emptied_.size() * slots_.SlotsPerSlab(for_);
}

void Vacating::Expire(absl::Time now) {
  if (now < until_) return;
  for (const uint32_t slab : emptied_) slots_.Open(slab, pool::SlotAllocator::Opened::kFirst);
  emptied_.clear();
  demand_ = 0;
}

std::span<const Vacating::Move> Vacating::Step(absl::FunctionRef<bool(uint32_t owner, SlotRef slot)> movable, absl::Time now,
                                               uint32_t* looked_at) {
  KVIST_CHECK(steps() && moves_.empty());
  if (phase_ == Phase::kFrees) {
    *looked_at = Free(now);
    return moves_;
  }
  const uint32_t first = next_place_;
  bool full = false;
  for (; next_place_ < slots_.places(slab_) && next_place_ - first < kPlacesMax && moves_.size() < kMovesMax;
       ++next_place_) {
    const std::optional<SlotRef> from = slots_.LiveAt(slab_, next_place_);
    if (!from.has_value()) continue;
    const uint32_t owner = slots_.OwnerOf(*from);
    if (owner == pool::SlotAllocator::kNobody || !movable(owner, *from)) {
      stuck_ = true;
      continue;
    }
    const std::optional<SlotRef> to = slots_.AllocateBeside(slab_);
    full = !to.has_value();  // others have taken what was free: what is left waits for more
    if (full) break;
    moves_.push_back({owner, *from, *to});
  }
  *looked_at = next_place_ - first;
  if (full) next_place_ = slots_.places(slab_);
  if (!moves_.empty()) {
    phase_ = Phase::kCopies;
  } else if (next_place_ == slots_.places(slab_)) {
    AllLookedAt();
  }
  return moves_;
}

void Vacating::Copied(absl::FunctionRef<bool(const Move& move)> take) {
  KVIST_CHECK(phase_ == Phase::kCopies);
  made_.clear();
  for (const Move& move : moves_) {
    if (take(move)) {
      slots_.SetOwner(move.to, move.owner);
      slots_.SetOwner(move.from, pool::SlotAllocator::kNobody);
      old_.push_back(move.from);
      made_.push_back(move);
    } else {
      slots_.Free(move.to);
      stuck_ |= slots_.IsLive(move.from);
    }
  }
  slots_moved_ += made_.size();
  moves_.clear();
  phase_ = Phase::kLooks;
  if (next_place_ == slots_.places(slab_)) AllLookedAt();
}

void Vacating::AllLookedAt() {
  KVIST_CHECK(unread());  // there are none of two eras ago: the last slab waited for them
  ++era_;
  phase_ = unread() ? Phase::kFrees : Phase::kWaits;
}

// Whether all loads have ended that began before the last chunk had its new slot.
bool Vacating::unread() const { return loads_[(era_ + 1) % 2] == 0 || planted == PlantedBug::kMovedUnderLoad; }

void Vacating::LoadEnded(uint32_t era) {
  KVIST_CHECK(loads_[era % 2] > 0);
  --loads_[era % 2];
  if (phase_ == Phase::kWaits && unread()) phase_ = Phase::kFrees;
}

uint32_t Vacating::Free(absl::Time now) {
  uint32_t freed = 0;
  for (; !old_.empty() && freed < kPlacesMax; ++freed, old_.pop_back()) slots_.Free(old_.back());
  if (!old_.empty()) return freed;
  phase_ = Phase::kRests;
  if (slots_.IsEmpty(slab_)) {
    emptied_.push_back(slab_);
    until_ = now + kPatience;
    ++slabs_emptied_;
  } else {
    slots_.Open(slab_, stuck_ ? pool::SlotAllocator::Opened::kFirst : pool::SlotAllocator::Opened::kLast);
  }
  return freed;
}

}  // namespace kvist::core
