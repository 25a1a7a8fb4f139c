#include "daemon/core/vacating.h"

#include <algorithm>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

bool Vacating::Comes(For whom, absl::Time now) {
  if (busy()) return Soon(now);
  if (now < rests_until_) return false;
  const std::optional<uint32_t> slab = slots_.Vacatable(last_tried_);
  if (!slab.has_value()) {
    if (last_tried_.has_value() &&
        slots_.Vacatable().has_value()) {  // there is that one only: it is tried once more, but later
      rests_until_ = now + kPatience;
      last_tried_.reset();
    }
    return false;
  }
  if (slots_.ClassOf(*slab) == whom.size) {  // it has room
    if (wanted_for_.size == whom.size) wanted_ = 0;
    return false;
  }
  slots_.Close(*slab);
  slab_ = *slab;
  for_ = whom;
  until_ = now + kPatience;
  next_place_ = 0;
  stuck_ = moved_ = false;
  phase_ = Phase::kLooks;
  ++changes_;
  return true;
}

bool Vacating::Claim(pool::SlotClass size) {
  const auto at = std::find_if(emptied_.begin(), emptied_.end(), [size](const Emptied& e) { return e.whom.size == size; });
  if (at == emptied_.end()) return false;
  slots_.Open(at->slab, pool::SlotAllocator::Opened::kFirst);
  emptied_.erase(at);
  ++changes_;
  if (size == wanted_for_.size) wanted_ -= std::min(wanted_, slots_.SlotsPerSlab(size));
  return true;
}

bool Vacating::Expire(absl::Time now) {
  const auto over = std::erase_if(emptied_, [&](const Emptied& e) {
    if (now >= e.until) slots_.Open(e.slab, pool::SlotAllocator::Opened::kFirst);
    return now >= e.until;
  });
  changes_ += over;
  return over > 0;
}

bool Vacating::Want(For whom, uint64_t slots, absl::Time now) {
  if (slots == 0) return false;
  const bool over = wanted_ == 0 || now >= wanted_until_;
  if (!over && (whom.size != wanted_for_.size || whom.tenant != wanted_for_.tenant)) return false;
  if (over) {
    wanted_ = 0;
    wanted_until_ = now + kPatience;
  }
  wanted_for_ = whom;
  wanted_ = std::max(wanted_, slots);  // all ranks say so, and who tries again
  return true;
}

bool Vacating::WantsMore(absl::Time now) const {
  if (busy() || wanted_ == 0 || now >= wanted_until_ || now < rests_until_) return false;
  const auto slabs = static_cast<uint64_t>(
      std::count_if(emptied_.begin(), emptied_.end(), [this](const Emptied& e) { return e.whom.size == wanted_for_.size; }));
  return wanted_ > (slabs + slots_.free_slabs()) * slots_.SlotsPerSlab(wanted_for_.size);
}

Bytes Vacating::ComingFor(TenantId tenant) const {
  auto slabs = static_cast<uint64_t>(
      std::count_if(emptied_.begin(), emptied_.end(), [tenant](const Emptied& e) { return e.whom.tenant == tenant; }));
  slabs += busy() && for_.tenant == tenant ? 1 : 0;
  return slots_.slab_bytes() * slabs;
}

bool Vacating::IsCopied(uint32_t owner) const {
  return std::any_of(moves_.begin(), moves_.end(), [owner](const Move& move) { return move.owner == owner; });
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
  moved_ |= !made_.empty();
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
  ++changes_;
  const bool in_vain = stuck_ || (!moved_ && !slots_.IsEmpty(slab_));
  last_tried_ = in_vain ? std::optional(slab_) : std::nullopt;
  tries_ = in_vain ? tries_ + 1 : 0;
  if (tries_ == kTries) {
    tries_ = 0;
    rests_until_ = now + kPatience;
  }
  if (slots_.IsEmpty(slab_)) {
    emptied_.push_back({slab_, for_, now + kPatience});
    ++slabs_emptied_;
  } else {
    slots_.Open(slab_, stuck_ ? pool::SlotAllocator::Opened::kFirst : pool::SlotAllocator::Opened::kLast);
  }
  return freed;
}

}  // namespace kvist::core
