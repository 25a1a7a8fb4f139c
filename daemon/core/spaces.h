#ifndef KVIST_DAEMON_CORE_SPACES_H_
#define KVIST_DAEMON_CORE_SPACES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "daemon/core/events.h"
#include "daemon/core/index_image.h"
#include "daemon/core/learned_cost.h"
#include "daemon/core/space_spec.h"
#include "daemon/core/tenants.h"
#include "storage/pool/sections.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

// A space that this daemon has met, and how its chunks are placed.
struct Space {
  SpaceSpec spec;
  TenantId tenant;
  std::vector<std::vector<pool::SlotClass>> classes;  // [group][shard]
  std::vector<uint32_t> near;  // [rank]: Sessions::NearOf of the engine whose worker came last; empty before the first
  uint32_t epoch = 0;          // rises with every clear (NewEpoch): chunks of older epochs are invisible
  bool cleared = false;  // since the core began: what the disk tells of from before then is gone, though it was on its way
  SpaceRow* row = nullptr;
  uint64_t sealed = 0;          // chunks, over all groups
  uint64_t below = 0;           // chunks that are in no slots, but in a tier below
  uint64_t remote_cleared = 0;  // what was offered or written to the remote store before this one is gone (RemoteCleared)
  uint64_t remote_losses = 0;   // so often something of it was removed there, or shall be
  bool no_disk = false;         // the disk can't take its chunks, as it has said of one
  bool rows_left = false;       // of chunks that couldn't be read (LeavePlaces), and that nothing has hidden since
  Bytes bytes{};                // slots of its chunks, sealed or filling
  LearnedCost computing = {};   // seconds that an engine takes for chunks, and for chunks * their mean position

  Bytes chunk_bytes(GroupId group) const {  // of one chunk, all shards
    Bytes sum{};
    for (const Bytes slot : spec.groups[group.value].slot_bytes) sum += slot;
    return sum;
  }
};

// All spaces, by digest. They are few (one per model and tenant) and never forgotten while the daemon lives, nor are the sizes of their
// slots; so each tenant has to leave others half of what is left to it.
class Spaces {
 public:
  explicit Spaces(pool::Sections* sections) : sections_(*sections) {}

  static constexpr uint32_t kSpacesMax = 4096;      // so that clients can't fill memory with descriptions
  static constexpr uint32_t kSlotSizesMax = 65535;  // for so many the pool has classes
  static constexpr uint32_t kGroupsMax = 64;
  static constexpr uint32_t kRanksMax = 64;  // and shards: bits of a Fill

  // The space of that digest, made on first use.
  // Errors: InvalidArgument  ranks, groups or slot sizes out of range.
  //         ResourceExhausted  the tenant has come with as many as it may.
  absl::StatusOr<SpaceId> Open(const SpaceSpec& spec, pool::SlotAllocator* slots, Tenants* tenants);

  // Hides all its chunks, from a later core, too.
  void NewEpoch(SpaceId id);

  std::optional<SpaceId> Find(const SpaceDigest& digest) const;
  Space& operator[](SpaceId id) { return spaces_[id.value]; }
  const Space& operator[](SpaceId id) const { return spaces_[id.value]; }
  bool Has(SpaceId id) const { return id.value < spaces_.size(); }
  uint32_t size() const { return static_cast<uint32_t>(spaces_.size()); }

 private:
  pool::Sections& sections_;
  std::vector<Space> spaces_;
  struct OfTenant {  // that it was the first to come with
    uint32_t spaces = 0, slot_sizes = 0;
  };
  absl::flat_hash_map<std::string, OfTenant> of_tenant_;
  absl::flat_hash_set<uint64_t> slot_sizes_;                       // bytes
  absl::flat_hash_map<uint64_t, std::vector<SpaceId>> by_digest_;  // by its first word; digests compared in full
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_SPACES_H_
