#ifndef KVIST_DAEMON_CORE_TENANTS_H_
#define KVIST_DAEMON_CORE_TENANTS_H_

#include <algorithm>
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
  bool has_quota = false;  // else `quota` is the pool
  Bytes used{};
  Bytes coming{};                          // slabs that are emptied for it (Vacating)
  Bytes private_bytes{};                   // of `used`: private allocations, which nobody can evict
  Bytes writing{};                         // of `used`: being written to disk
  Bytes read_waits{};                      // a chunk of so many bytes waits for slots whose chunk is on disk
  bool refills = false;                    // its reserve was used up, and isn't whole again
  uint64_t evictions = 0;                  // of its chunks
  uint64_t ghosts = 0;                     // chunks without bytes
  std::unique_ptr<EvictionPolicy> policy;  // orders its chunks only
  CleanReserve* clean = nullptr;           // it, where there is a disk
  uint64_t asked_in = 0;                   // the round in which Tenants has asked it for a victim in vain

  // What it has, or will have: no more than it may, for what is emptied for it is whole slabs.
  Bytes held() const { return used + std::min(coming, quota - std::min(used, quota)); }
  // How much of its quota that is. Who uses most gives way first.
  double share() const { return static_cast<double>(held().value) / static_cast<double>(quota.value); }
};

// Who shares the pool. A tenant at its quota evicts its own chunks. When the pool is full the tenant that uses most of its quota gives
// way (without quotas: the largest), so a flood evicts others only until it has as much as they have: nobody's cache can be emptied
// by another's.
//
// While all quotas together fit into the pool each is a promise, too, and so is the rest of the pool to those without a quota: who has
// what nobody promised gives way first. Who asks for more than was promised gets what such tenants give, or is refused: all they have
// may be leased, pinned or being filled, which would else eat what is promised to others. Who asks for less gets it from anybody when
// they have nothing to give. Quotas that don't fit only limit: nobody could keep such promises.
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

  // In force for the next store; a tenant that has more evicts down to it then. No quota: the whole pool. Those of tenants that
  // haven't come yet count in what fits.
  void SetQuota(const std::string& name, std::optional<Bytes> quota);
  // Those that are set, as they were given, also of tenants that haven't come yet.
  const std::map<std::string, Bytes>& quotas() const { return quotas_; }

  // What is the tenant's, whatever others ask for: its quota or, without one, what all quotas leave, which it shares with others of its kind.
  // Quotas that don't fit promise nothing: then, without one, the pool. What nobody can evict (pins, leases, private allocations) is bounded by
  // shares of this, so that no tenant's can take what is promised to others. It changes with others' quotas; what is there then stays.
  Bytes EntitledTo(TenantId tenant) const;

  // Takes a victim of the tenant; kNoChunk when it has none. kOnDisk: only one that is on a disk.
  enum class Victims : uint8_t { kAny, kOnDisk };
  ChunkIndex NextVictimOf(TenantId tenant, Victims which = Victims::kAny);
  // Takes a victim for `whose`, who wants a chunk of `bytes` and isn't at its quota: of those who have what nobody promised, the one
  // that uses most of its quota and has one, perhaps `whose` own; then, within what is promised to `whose`, of all of them, and at once
  // where only `whose` itself has such (what it lacks is others' ends of slabs). For one that is to
  // be on a disk it waits rather while theirs may come there, and takes of `whose` own meanwhile. kNoChunk: nobody has one.
  // Cost: a look at each tenant, and at those again that have nothing to give.
  ChunkIndex NextVictim(TenantId whose, Bytes bytes, Victims which = Victims::kAny);

 private:
  Bytes QuotaOf(const std::string& name) const;
  // What a quota adds to promised_. One above the pool is more than can be promised.
  Bytes Promise(Bytes quota) const { return std::min(quota, capacity_ + Bytes{1}); }
  // Whether it has no more than its quota, and that is promised.
  bool Safe(const Tenant& tenant) const { return tenant.has_quota && tenant.held() <= tenant.quota; }
  // What tenants have without a promise to them alone.
  Bytes Loose() const;
  // Of tenants that `may` holds for.
  template <class May>
  ChunkIndex NextVictimAmong(Victims which, May may);
  // Whether one of them has one, be it on a disk or not.
  template <class May>
  bool HasVictimAmong(May may);

  ChunkTable& chunks_;
  const Bytes capacity_;
  const Eviction eviction_;
  const std::function<Bytes(ChunkIndex)> bytes_;
  std::map<std::string, Bytes> quotas_;
  Bytes promised_{};  // by all quotas
  std::vector<Tenant> tenants_;
  absl::flat_hash_map<std::string, TenantId> by_name_;
  uint64_t round_ = 0;  // of NextVictimAmong
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_TENANTS_H_
