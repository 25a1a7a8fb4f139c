#include "daemon/core/pins.h"

#include "storage/base/check.h"

namespace kvist::core {

Pins::Space& Pins::At(SpaceId space) {
  if (space.value >= spaces_.size()) spaces_.resize(space.value + 1);
  return spaces_[space.value];
}

Pins::Named* Pins::FindNamed(SpaceId space, const PinName& name) {
  if (space.value >= spaces_.size()) return nullptr;
  const auto found = spaces_[space.value].pins.find(name);
  return found == spaces_[space.value].pins.end() ? nullptr : &*found;
}

Pin* Pins::Find(SpaceId space, const PinName& name) {
  Named* named = FindNamed(space, name);
  return named == nullptr ? nullptr : &named->second;
}

bool Pins::Full(SpaceId space) const {
  return space.value < spaces_.size() && spaces_[space.value].pins.size() >= kPinsPerSpace;
}

void Pins::Add(SpaceId space, TenantId tenant, PinName name, Pin pin) {
  Space& of = At(space);
  if (tenant.value >= used_.size()) used_.resize(tenant.value + 1);
  used_[tenant.value] += pin.bytes;
  of.bytes += pin.bytes;
  if (pin.number == 0) pin.number = ++last_number_;
  if (pin.until != absl::InfiniteFuture()) expiring_.emplace(pin.until, pin.number);
  const auto [at, fresh] = of.pins.emplace(std::move(name), std::move(pin));
  KVIST_CHECK(fresh && by_number_.emplace(at->second.number, Place{space, of.taken, &*at}).second);
  ++size_;
}

Pin Pins::Take(SpaceId space, TenantId tenant, const PinName& name) {
  Space& of = At(space);
  const auto node = of.pins.extract(name);
  KVIST_CHECK(!node.empty());
  Forget(node.mapped());
  used_[tenant.value] -= node.mapped().bytes;
  of.bytes -= node.mapped().bytes;
  --size_;
  return std::move(node.mapped());
}

Pins::OfSpace Pins::TakeAll(SpaceId space, TenantId tenant) {
  Space& of = At(space);
  if (of.pins.empty()) return {};
  used_[tenant.value] -= of.bytes;
  size_ -= of.pins.size();
  of.bytes = {};
  ++of.taken;
  return std::exchange(of.pins, {});
}

std::optional<Pins::Expired> Pins::NextDue() {
  const Place& place = by_number_.at(expiring_.extract(expiring_.begin()).value().second);
  if (place.taken != spaces_[place.space.value].taken) return std::nullopt;
  return Expired{place.space, place.pin->first};
}

void Pins::Forget(const Pin& pin) {
  by_number_.erase(pin.number);
  expiring_.erase({pin.until, pin.number});
}

Pins::Page Pins::After(uint64_t after, size_t looks) const {
  Page page;
  auto at = by_number_.upper_bound(after);
  for (; looks > 0 && at != by_number_.end(); --looks, ++at) {
    const Place& place = at->second;
    if (place.taken == spaces_[place.space.value].taken) page.pins.emplace_back(place.space, place.pin);
    page.next = at->first;
  }
  if (at == by_number_.end()) page.next = 0;
  return page;
}

bool Pins::CountsExpiring() const {
  size_t live = 0;
  for (const auto& [until, number] : expiring_) {
    const auto at = by_number_.find(number);
    if (at == by_number_.end()) return false;
    live += at->second.taken == spaces_[at->second.space.value].taken ? 1 : 0;
  }
  ForEach([&](SpaceId, const Named& named) { live -= named.second.until != absl::InfiniteFuture() ? 1 : 0; });
  return live == 0;
}

Bytes Pins::used(TenantId tenant) const { return tenant.value < used_.size() ? used_[tenant.value] : Bytes{}; }

}  // namespace kvist::core
