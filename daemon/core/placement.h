#ifndef KVIST_DAEMON_CORE_PLACEMENT_H_
#define KVIST_DAEMON_CORE_PLACEMENT_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/effects.h"
#include "daemon/core/events.h"
#include "daemon/core/eviction_policy.h"
#include "daemon/core/shard_runs.h"
#include "daemon/core/space_spec.h"
#include "daemon/core/spaces.h"
#include "daemon/core/vacating.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

// Which slots hold each chunk's shards, which places on disk, whether a remote store does, and who goes when there is no room.
//
// Lifecycle of a chunk's bytes: Reserve (ghost -> filling, below -> reading: slots for all shards or for none) -> the caller seals it
//   -> evicted: its slots go, and it is below from then on, or gone.
//   -> or, for half a store or a read that failed, Unreserve.
// Threads: one.
class Placement {
 public:
  Placement(pool::SlotAllocator* slots, ChunkTable* chunks, Spaces* spaces, Tenants* tenants, pool::Sections* sections)
      : slots_(*slots),
        chunks_(*chunks),
        spaces_(*spaces),
        tenants_(*tenants),
        sections_(*sections),
        vacating_(slots),
        slot_runs_(sections, ImageSection::kSlotRuns),
        place_runs_(sections, ImageSection::kPlaceRuns) {}

  // Slots for all shards of a ghost or of a chunk below, evicting least valuable leaves until there is room: the tenant's own while
  // it is at its quota, else whoever's Tenants chooses. False and nothing reserved when there is none. The chunk is then kFilling or
  // kReading. Its parent is safe meanwhile.
  //
  // A victim's slots serve at once when they are of the right size. Else a slab is emptied as soon as enough of them are free (Vacating), and
  // until it is, only what serves at once is evicted for this. One call evicts at most kEvictionsMax chunks for each shard, and but one once
  // the event's work is done, so that it is bounded; a store that is refused for that makes room for the next one.
  // `near`: the region of the pool in which each rank would like its shard, [rank]; there while it has room, else in any. Empty: wherever.
  // `victims`: what may go for it. `wanted`: so many chunks like it will be stored; for those that get none slabs are emptied, and what is
  // worth least is evicted for that (MakeRoom), for the store that comes next, as far as its tenant may have them.
  bool Reserve(ChunkIndex chunk, std::span<const uint32_t> near, Tenants::Victims victims = Tenants::Victims::kAny,
               uint32_t wanted = 0);
  static constexpr uint32_t kEvictionsMax = 64;

  // Goes on with emptying a slab; the copies that it wants, until SlotsCopied. And evicts for more slabs, where stores found no slots.
  bool vacates() const { return vacating_.steps(); }
  bool MakesRoom() const { return vacating_.WantsMore(now_); }
  void MakeRoom();
  std::optional<SlotsCopyStarted> GoOnVacating();
  void SlotsCopied();
  const Vacating& vacating() const { return vacating_; }
  bool SlabComesSoon() const { return vacating_.Soon(now_); }
  uint32_t LoadBegan() { return vacating_.LoadBegan(); }
  void LoadEnded(uint32_t era) { vacating_.LoadEnded(era); }

  // A ghost that an earlier core had in these slots [shard], live ones, whole: sealed from now on.
  void Resume(ChunkIndex chunk, std::span<const SlotRef> slots);
  // Live slots without a chunk: somebody may still write to them. Until EndDoubt gives them back, one by one. Once.
  void Doubt(std::vector<SlotRef> slots);
  size_t in_doubt() const { return in_doubt_.size(); }
  void EndDoubt();

  // A new ghost, as ChunkTable::Add and AddPrivate make it; it counts in its tenant's.
  ChunkIndex Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent);
  ChunkIndex AddPrivate(SpaceId space, GroupId group);

  // Removes what only waits for it, or else evicts what is worth least of a tenant, one of them: sealed chunks that nobody finds,
  // for they hang on ghosts, go so at last.
  void MakeFewerGhosts(TenantId tenant);

  // Takes a chunk out of the index: nobody finds it any more.
  void Detach(ChunkIndex chunk);

  // Somebody watches: from now on it is noted when a chunk that lookups find comes to be in other tiers. What happens here is noted here; what
  // makes a chunk whole elsewhere calls Moved.
  void Watch() { watched_ = true; }
  void Moved(ChunkIndex chunk);
  // A clear has hidden a whole space.
  void HiddenAtOnce() { changed_.again = watched_; }
  // Whether a lookup finds the chunk, if it finds what that hangs on; and where it is.
  bool IsFound(const Chunk& chunk) const {
    return !chunk.detached && chunk.whole() && chunk.epoch == spaces_[chunk.space].epoch;
  }
  static ChunkWhere Where(const Chunk& chunk);
  // What was noted since the last call.
  bool HasChanged() const { return changed_.again || !changed_.chunks.empty(); }
  ChunksChanged TakeChanged() { return std::exchange(changed_, {}); }

  // Frees the slots of a chunk that isn't held; it is below then, where it has a copy there and can still be found, or a ghost. Tells
  // the policy when its parent has become a leaf.
  void Unreserve(ChunkIndex chunk);

  // The copy on disk of a chunk that had none: of all shards. The caller sets Chunk::disk.
  void SetPlaces(ChunkIndex chunk, std::span<const DiskPlace> places, DiskForm form);
  std::span<const DiskPlace> PlacesOf(ChunkIndex chunk) const;
  DiskForm FormOf(ChunkIndex chunk) const;  // there
  const EncodedOnDisk& encoded() const { return encoded_; }
  // A new chunk that is on disk only.
  ChunkIndex AddOnDisk(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent,
                       std::span<const DiskPlace> places, DiskForm form);
  // A ghost's copy on disk was found: it is on disk only then.
  void Revive(ChunkIndex chunk, std::span<const DiskPlace> places, DiskForm form);
  // Its copy on disk is of no use any more; a chunk that was nowhere else is a ghost then. `replaced`: it is on disk elsewhere.
  void ForgetPlaces(ChunkIndex chunk, bool replaced = false);
  // The same, but its copy can't be read now: a later daemon may find it again, unless nobody may find the chunk any more.
  void LeavePlaces(ChunkIndex chunk);
  // A new chunk that is in a remote store only. Nobody but its user keeps it in the tree (Collect).
  ChunkIndex AddRemote(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent);
  // It is in a remote store; a ghost is there only. And it isn't any more.
  void SetRemote(ChunkIndex chunk);
  void ForgetRemote(ChunkIndex chunk);
  // What has been forgotten and is to be freed, since the last call.
  std::vector<PlacesFreed::Chunk> TakeForgotten() { return std::exchange(forgotten_, {}); }
  // Whether the chunk that has this name now is on disk: then its places are what a restart finds.
  bool IsOnDisk(SpaceId space, GroupId group, const ChunkKey& key, uint32_t position) const;
  void Forget(PlacesFreed::Chunk places) { forgotten_.push_back(std::move(places)); }

  // Removes a ghost, what is in a remote store only, or a private, detached or evicted chunk with its bytes, if nothing needs it; then its ancestors that were only
  // waiting for that: of detached ones, whose chains may be of any length, kCollectMax, of ghosts kGhostsMax, and the rest waits
  // for CollectRest. Nor does it remove any once the work that the event may do is done.
  void Collect(ChunkIndex chunk) { Collect(chunk, kCollectMax, until_); }
  // That is when ChunkTable::work() has come to `until`.
  void SpendUntil(uint64_t until, absl::Time now) {
    until_ = until;
    now_ = now;
  }
  bool spent() const { return chunks_.work() >= until_; }
  static constexpr uint32_t kGhostsMax = 256;  // of a chain of half stores that failed, at once
  static constexpr uint32_t kCollectMax = 4;   // less than the chains of tests/sim have
  // Goes on with what Collect has left (there must be some) until work() has come to `until`; at least one chunk is removed.
  void CollectRest(uint64_t until);
  // Detached chunks that nothing needs and whose turn hasn't come: nobody can find them, so nobody will need them.
  const std::vector<ChunkIndex>& rest() const { return rest_; }

  // Of the shard that is the rank's; of all shards.
  SlotRef SlotOf(ChunkIndex chunk, Rank rank) const;
  std::span<const SlotRef> SlotsOf(ChunkIndex chunk) const;

  // The order of the chunk's tenant.
  EvictionPolicy& PolicyOf(ChunkIndex chunk) { return *tenants_[spaces_[chunks_[chunk].space].tenant].policy; }
  uint64_t evictions() const { return evictions_; }
  uint64_t demotions() const { return demotions_; }  // of those: chunks that are on disk since
  // Stops the process unless every live slot belongs to exactly one chunk, is in doubt, or is being moved.
  void CheckInvariants() const;

 private:
  const GroupSpec& Group(const Chunk& chunk) const { return spaces_[chunk.space].spec.groups[chunk.group.value]; }
  void Collect(ChunkIndex chunk, uint32_t detached_max, uint64_t until);
  // False when there is no victim.
  bool Evict(ChunkIndex victim);
  SlotRef* Shards(const Chunk& chunk);
  // The chunk's shard that lies there; none if it isn't sealed, or a copy into or out of its slots other than a chained load is under way.
  SlotRef* Movable(ChunkIndex chunk, SlotRef slot);
  // As Tenants::NextVictim, which is told first what is coming for whom.
  ChunkIndex NextVictim(TenantId whose, Bytes bytes, Tenants::Victims victims);
  bool HasClass(ChunkIndex chunk, pool::SlotClass size) const;
  void SetOwners(ChunkIndex chunk);
  // The chunk's parent, if it is in slots, is or isn't kept there by this child any more.
  void KeepParent(const Chunk& chunk);
  void LetParentGo(const Chunk& chunk);
  DiskPlace* Places(const Chunk& chunk);
  // A ghost that has come to have a copy below; and one below that has lost its last.
  void BecomeBelow(Chunk& chunk);
  void BecomeGhost(Chunk& chunk);

  pool::SlotAllocator& slots_;
  ChunkTable& chunks_;
  Spaces& spaces_;
  Tenants& tenants_;
  pool::Sections& sections_;
  Vacating vacating_;
  uint64_t counted_ = 0;  // of its changes, in Tenant::coming
  Bytes of_chunks_{};     // that whom it is emptied for would have liked to store
  ShardRuns<SlotRef> slot_runs_;
  ShardRuns<DiskPlace> place_runs_;
  absl::flat_hash_map<ChunkIndex, DiskForm> forms_;  // on disk, of what is encoded there
  EncodedOnDisk encoded_;                            // all of them
  std::vector<SlotRef> in_doubt_;
  std::vector<RestingSlot*> resting_;  // they, for a later core
  std::vector<PlacesFreed::Chunk> forgotten_;
  std::vector<ChunkIndex> rest_;
  bool watched_ = false;
  ChunksChanged changed_;
  uint64_t evictions_ = 0;
  uint64_t demotions_ = 0;
  uint64_t until_ = UINT64_MAX;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PLACEMENT_H_
