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
      quotas_(std::move(quotas)) {}

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
  if (quota.has_value()) {
    quotas_[name] = *quota;
  } else {
    quotas_.erase(name);
  }
  if (const auto known = by_name_.find(name); known != by_name_.end()) tenants_[known->second.value].quota = QuotaOf(name);
}

ChunkIndex Tenants::NextVictimOf(TenantId id, Victims which) {
  Tenant& tenant = (*this)[id];
  if (which == Victims::kAny) return tenant.policy->NextVictim();
  return tenant.clean != nullptr ? tenant.clean->NextOnDisk() : kNoChunk;
}

ChunkIndex Tenants::NextVictim(Victims which) {
  asked_.clear();
  while (asked_.size() < tenants_.size()) {
    uint32_t most = UINT32_MAX;
    for (uint32_t t = 0; t < size(); ++t) {
      if (std::find(asked_.begin(), asked_.end(), t) != asked_.end()) continue;
      if (most == UINT32_MAX || tenants_[t].share() > tenants_[most].share()) most = t;
    }
    if (tenants_[most].used == Bytes{0}) break;  // nor have those after it
    if (const ChunkIndex victim = NextVictimOf(TenantId{most}, which); victim != kNoChunk) return victim;
    asked_.push_back(most);
  }
  return kNoChunk;
}

}  // namespace kvist::core
