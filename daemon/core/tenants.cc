#include "daemon/core/tenants.h"

#include <algorithm>
#include <utility>

namespace kvist::core {

Tenants::Tenants(ChunkTable* chunks, Bytes capacity, std::map<std::string, Bytes> quotas, Eviction eviction,
                 std::function<Bytes(ChunkIndex)> bytes)
    : chunks_(*chunks),
      capacity_(std::max(capacity, Bytes{1})),
      eviction_(eviction),
      bytes_(std::move(bytes)),
      quotas_(std::move(quotas)) {
  for (const auto& [name, quota] : quotas_) promised_ += Promise(quota);
}

Bytes Tenants::QuotaOf(const std::string& name) const {
  const auto quota = quotas_.find(name);
  return quota == quotas_.end() ? capacity_ : std::clamp(quota->second, Bytes{1}, capacity_);
}

TenantId Tenants::Open(const std::string& name) {
  const auto [at, fresh] = by_name_.try_emplace(name, TenantId{size()});
  if (fresh) {
    Tenant tenant;
    tenant.name = name;
    tenant.quota = QuotaOf(name);
    tenant.has_quota = quotas_.contains(name);
    tenant.policy = MakeEvictionPolicy(eviction_, &chunks_);
    if (bytes_ != nullptr) {
      auto reserve = std::make_unique<CleanReserve>(std::move(tenant.policy), &chunks_, bytes_);
      tenant.clean = reserve.get();
      tenant.policy = std::move(reserve);
    }
    tenants_.push_back(std::move(tenant));
  }
  return at->second;
}

void Tenants::SetQuota(const std::string& name, std::optional<Bytes> quota) {
  if (const auto before = quotas_.find(name); before != quotas_.end()) {
    promised_ -= Promise(before->second);
    quotas_.erase(before);
  }
  if (quota.has_value()) {
    promised_ += Promise(*quota);
    quotas_.emplace(name, *quota);
  }
  const auto known = by_name_.find(name);
  if (known == by_name_.end()) return;
  Tenant& tenant = (*this)[known->second];
  tenant.quota = QuotaOf(name);
  tenant.has_quota = quota.has_value();
}

ChunkIndex Tenants::NextVictimOf(TenantId id, Victims which) {
  Tenant& tenant = (*this)[id];
  if (which == Victims::kAny) return tenant.policy->NextVictim();
  return tenant.clean != nullptr ? tenant.clean->NextOnDisk() : kNoChunk;
}

Bytes Tenants::EntitledTo(TenantId id) const {
  const Tenant& tenant = (*this)[id];
  return tenant.has_quota || promised_ > capacity_ ? tenant.quota : capacity_ - promised_;
}

Bytes Tenants::Loose() const {
  Bytes loose{};
  for (const Tenant& tenant : tenants_)
    loose += tenant.has_quota ? tenant.held() - std::min(tenant.held(), tenant.quota) : tenant.held();
  return loose;
}

ChunkIndex Tenants::NextVictim(TenantId whose, Bytes bytes, Victims which) {
  const auto anybody = [](const Tenant&) { return true; };
  if (promised_ > capacity_) return NextVictimAmong(which, anybody);
  const Tenant& asks = (*this)[whose];
  const Bytes rest = capacity_ - promised_;
  const Bytes loose = Loose();
  const bool within = asks.has_quota || loose + bytes <= rest;
  // Those without a quota give others only what they have beyond the rest, which is promised to them.
  const auto gives = [&](const Tenant& tenant) {
    return !Safe(tenant) && (tenant.has_quota || !asks.has_quota || loose > rest);
  };
  const bool only_itself = within && std::none_of(tenants_.begin(), tenants_.end(), [&](const Tenant& tenant) {
                             return &tenant != &asks && tenant.used > tenant.private_bytes && gives(tenant);
                           });
  if (only_itself) return NextVictimAmong(which, anybody);
  if (const ChunkIndex victim = NextVictimAmong(which, gives); victim != kNoChunk || !within) return victim;
  // What others have too much comes to the disk soon, unless all of it is in use.
  if (which == Victims::kOnDisk && loose > rest && HasVictimAmong(gives)) return NextVictimOf(whose, which);
  return NextVictimAmong(which, anybody);
}

template <class May>
bool Tenants::HasVictimAmong(May may) {
  for (Tenant& tenant : tenants_) {
    const ChunkIndex victim = may(tenant) ? tenant.policy->NextVictim() : kNoChunk;
    if (victim == kNoChunk) continue;
    tenant.policy->Exposed(victim);  // back to where it was
    return true;
  }
  return false;
}

template <class May>
ChunkIndex Tenants::NextVictimAmong(Victims which, May may) {
  ++round_;
  while (true) {
    uint32_t most = UINT32_MAX;
    for (uint32_t t = 0; t < size(); ++t) {
      if (!may(tenants_[t]) || tenants_[t].asked_in == round_) continue;
      if (most == UINT32_MAX || tenants_[t].share() > tenants_[most].share()) most = t;
    }
    if (most == UINT32_MAX || tenants_[most].held() == Bytes{0}) return kNoChunk;  // nor have those after it
    if (const ChunkIndex victim = NextVictimOf(TenantId{most}, which); victim != kNoChunk) return victim;
    tenants_[most].asked_in = round_;
  }
}

}  // namespace kvist::core
