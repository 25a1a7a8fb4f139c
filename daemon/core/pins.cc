#include "daemon/core/pins.h"

#include "storage/base/check.h"

namespace kvist::core {

Pins::Space& Pins::At(SpaceId space) {
  if (space.value >= spaces_.size()) spaces_.resize(space.value + 1);
  return spaces_[space.value];
}

Pin* Pins::Find(SpaceId space, const PinName& name) {
  if (space.value >= spaces_.size()) return nullptr;
  const auto found = spaces_[space.value].pins.find(name);
  return found == spaces_[space.value].pins.end() ? nullptr : &found->second;
}

bool Pins::Full(SpaceId space) const {
  return space.value < spaces_.size() && spaces_[space.value].pins.size() >= kPinsPerSpace;
}

void Pins::Add(SpaceId space, TenantId tenant, PinName name, Pin pin) {
  Space& of = At(space);
  if (tenant.value >= used_.size()) used_.resize(tenant.value + 1);
  used_[tenant.value] += pin.bytes;
  of.bytes += pin.bytes;
  KVIST_CHECK(of.pins.emplace(std::move(name), std::move(pin)).second);
  ++size_;
}

Pin Pins::Take(SpaceId space, TenantId tenant, const PinName& name) {
  Space& of = At(space);
  const auto node = of.pins.extract(name);
  KVIST_CHECK(!node.empty());
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
  return std::exchange(of.pins, {});
}

Bytes Pins::used(TenantId tenant) const { return tenant.value < used_.size() ? used_[tenant.value] : Bytes{}; }

}  // namespace kvist::core
