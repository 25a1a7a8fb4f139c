#ifndef KVIST_DAEMON_CORE_TENANTS_H_
#define KVIST_DAEMON_CORE_TENANTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/clean_reserve.h"
#include "daemon/core/eviction_policy.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::core {

using TenantId = Id<struct TenantTag, uint32_t>;  // dense, starting at 0

inline Bytes ShareOf(Bytes whole, double share) { return {static_cast<uint64_t>(static_cast<double>(whole.value) * share)}; }

// One tenant's part of the pool.
struct Tenant {
  std::string name;
  Bytes quota{};  // of slots, sealed and filling: at most so much, and never more than the pool: shares are compared
  Bytes used{};
  Bytes private_bytes{};                   // of `used`: private allocations, which nobody can evict
  Bytes writing{};                         // of `used`: being written to disk
  Bytes read_waits{};                      // a chunk of so many bytes waits for slots whose chunk is on disk
  uint64_t evictions = 0;                  // of its chunks
  uint64_t ghosts = 0;                     // chunks without bytes
  std::unique_ptr<EvictionPolicy> policy;  // orders its chunks only
  CleanReserve* clean = nullptr;           // it, where there is a disk

  // How much of its quota it uses. Who uses most gives way first.
  double share() const { return static_cast<double>(used.value) / static_cast<double>(quota.value); }
};

// Who shares the pool. A tenant at its quota evicts its own chunks. When the pool is full the tenant that uses most of its quota gives
// way (without quotas: the largest), so a flood evicts others only until it has as much as they have: nobody's cache can be emptied
// by another's.
//
// Threads: one.
class Tenants {
 public:
  // `capacity`: quota of those that have none. `quotas` by tenant's name. `eviction`: of each tenant's own chunks. `bytes`, where there is a
  // disk: of a chunk's slots.
  Tenants(ChunkTable* chunks, Bytes capacity, std::map<std::string, Bytes> quotas, Eviction eviction,
          std::function<Bytes(ChunkIndex)> bytes = nullptr);

  // The tenant of that name, made on first use.
  TenantId Open(const std::string& name);
  Tenant& operator[](TenantId id) { return tenants_[id.value]; }
  const Tenant& operator[](TenantId id) const { return tenants_[id.value]; }
  uint32_t size() const { return static_cast<uint32_t>(tenants_.size()); }

  // In force for the next store; a tenant that has more evicts down to it then. No quota: the whole pool.
  void SetQuota(const std::string& name, std::optional<Bytes> quota);
  // Those that are set, as they were given, also of tenants that haven't come yet.
  const std::map<std::string, Bytes>& quotas() const { return quotas_; }

  // Takes a victim of the tenant; kNoChunk when it has none. kOnDisk: only one that is on a disk.
  enum class Victims : uint8_t { kAny, kOnDisk };
  ChunkIndex NextVictimOf(TenantId tenant, Victims which = Victims::kAny);
  // Takes a victim from the tenant that uses most of its quota and has one; kNoChunk when nobody has.
  // Cost: a look at each tenant, and at those again that have nothing to give.
  ChunkIndex NextVictim(Victims which = Victims::kAny);

 private:
  Bytes QuotaOf(const std::string& name) const;

  ChunkTable& chunks_;
  const Bytes capacity_;
  const Eviction eviction_;
  const std::function<Bytes(ChunkIndex)> bytes_;
  std::map<std::string, Bytes> quotas_;
  std::vector<Tenant> tenants_;
  absl::flat_hash_map<std::string, TenantId> by_name_;
  std::vector<uint32_t> asked_;  // scratch of NextVictim
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_TENANTS_H_
