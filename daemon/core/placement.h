#ifndef KVIST_DAEMON_CORE_PLACEMENT_H_
#define KVIST_DAEMON_CORE_PLACEMENT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/eviction_policy.h"
#include "daemon/core/spaces.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

// Which slots hold each chunk's shards, and who goes when there is no room.
//
// Lifecycle of a chunk's bytes: Reserve (ghost -> filling: slots for all shards or for none) -> the caller seals it
//   -> Drop (bytes and chunk go) or, for a half store, Unreserve (filling -> ghost).
// Threads: one.
class Placement {
 public:
  Placement(pool::SlotAllocator* slots, ChunkTable* chunks, Spaces* spaces, Tenants* tenants)
      : slots_(*slots), chunks_(*chunks), spaces_(*spaces), tenants_(*tenants) {}

  // Slots for all shards of a ghost, evicting least valuable leaves until there is room: the tenant's own while it is at its quota,
  // else whoever's Tenants chooses. False and nothing reserved when there is none. The chunk is then kFilling. Its parent is safe:
  // it has this child.
  //
  // A victim's slots serve at once when they are of the right size; else they help when their slab empties. One call evicts at most
  // kEvictionsMax chunks for each shard, and but one once the event's work is done, so that it is bounded; a store that is refused
  // for that makes room for the next one.
  bool Reserve(ChunkIndex chunk);
  static constexpr uint32_t kEvictionsMax = 64;

  // A new ghost, as ChunkTable::Add and AddPrivate make it; it counts in its tenant's.
  ChunkIndex Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent);
  ChunkIndex AddPrivate(SpaceId space, GroupId group);

  // Removes what only waits for it, or else evicts what is worth least of a tenant, one of them: sealed chunks that nobody finds,
  // for they hang on ghosts, go so at last.
  void MakeFewerGhosts(TenantId tenant);

  // Frees the slots of a chunk that isn't held; it is a ghost then.
  void Unreserve(ChunkIndex chunk);

  // Removes a ghost, or a private, detached or evicted chunk with its bytes, if nothing needs it; then its ancestors that were only
  // waiting for that: of detached ones, whose chains may be of any length, kCollectMax, of ghosts kGhostsMax, and the rest waits
  // for CollectRest. Nor does it remove any once the work that the event may do is done. Tells the policy when a sealed parent has
  // become a leaf.
  void Collect(ChunkIndex chunk) { Collect(chunk, kCollectMax, until_); }
  // That is when ChunkTable::work() has come to `until`.
  void SpendUntil(uint64_t until) { until_ = until; }
  bool spent() const { return chunks_.work() >= until_; }
  static constexpr uint32_t kGhostsMax = 256;  // of a chain of half stores that failed, at once
  static constexpr uint32_t kCollectMax = 4;   // less than the chains of tests/sim have
  // Goes on with what Collect has left (there must be some) until work() has come to `until`; at least one chunk is removed.
  void CollectRest(uint64_t until);
  // Detached chunks that nothing needs and whose turn hasn't come: nobody can find them, so nobody will need them.
  const std::vector<ChunkIndex>& rest() const { return rest_; }

  // Of the shard that is the rank's.
  SlotRef SlotOf(ChunkIndex chunk, Rank rank) const;

  // The order of the chunk's tenant.
  EvictionPolicy& PolicyOf(ChunkIndex chunk) { return *tenants_[spaces_[chunks_[chunk].space].tenant].policy; }
  uint64_t evictions() const { return evictions_; }
  // Stops the process unless every live slot belongs to exactly one chunk.
  void CheckInvariants() const;

 private:
  const GroupSpec& Group(const Chunk& chunk) const { return spaces_[chunk.space].spec.groups[chunk.group.value]; }
  void Collect(ChunkIndex chunk, uint32_t detached_max, uint64_t until);
  // False when there is no victim.
  bool Evict(ChunkIndex victim);
  SlotRef* Shards(const Chunk& chunk);
  uint32_t NewRun(uint32_t shards);

  // Slot runs of chunks with several shards; runs of one length lie in one arena.
  struct Runs {
    std::vector<std::unique_ptr<SlotRef[]>> segments;  // kRunsPerSegment runs each
    std::vector<uint32_t> free;
    uint32_t next = 0;
  };
  static constexpr uint32_t kRunsPerSegment = 4096;

  pool::SlotAllocator& slots_;
  ChunkTable& chunks_;
  Spaces& spaces_;
  Tenants& tenants_;
  Runs runs_[Spaces::kRanksMax + 1];  // [shards]
  std::vector<ChunkIndex> rest_;
  uint64_t evictions_ = 0;
  uint64_t until_ = UINT64_MAX;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PLACEMENT_H_
