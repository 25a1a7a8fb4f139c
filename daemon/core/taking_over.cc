// What the core does with what a core before it has left: chunks that lie whole in slots go on, and slots that somebody may still write to
// rest.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/core.h"
#include "daemon/core/left_index.h"
#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

// A slot that was in use in the core before, and for which shard.
struct LeftShard {
  uint32_t slot;     // SlotRef::index
  ChunkIndex chunk;  // none: it was in doubt there already
  uint32_t shard;
  pool::SlotClass size;
  SlotRef taken = {};  // once the slot is live here; none where another chunk says that it is its own
};
using SlotsOfChunks = absl::flat_hash_map<ChunkIndex, std::vector<SlotRef>>;  // [shard]

// What the core before says of its chunks, as far as it can be true.
class Heritage {
 public:
  // `spaces`: [SpaceId there].
  Heritage(const LeftIndex& left, std::span<const std::optional<SpaceId>> spaces, const Spaces& known)
      : left_(left), ids_(spaces), known_(known) {}

  std::optional<SpaceId> SpaceOf(const Chunk& chunk) const {
    if (chunk.space.value >= ids_.size() || !ids_[chunk.space.value].has_value()) return std::nullopt;
    const SpaceId id = *ids_[chunk.space.value];
    const std::vector<GroupSpec>& groups = known_[id].spec.groups;
    if (chunk.group.value >= groups.size()) return std::nullopt;
    const std::span<const Bytes> there = left_.SlotBytesOf(chunk);
    const std::vector<Bytes>& here = groups[chunk.group.value].slot_bytes;
    return std::equal(there.begin(), there.end(), here.begin(), here.end()) ? std::optional(id) : std::nullopt;
  }
  // Whether it was to be found by its name.
  bool Named(const Chunk& chunk) const {
    return SpaceOf(chunk).has_value() && !chunk.detached && chunk.epoch == left_.spaces()[chunk.space.value].epoch;
  }
  // Whether a chunk that is named hangs on nothing, or on what can be its parent.
  bool Hangs(const Chunk& chunk) const {
    if (chunk.parent == kNoChunk) return chunk.position == 0;
    if (chunk.parent >= left_.places()) return false;
    const Chunk& parent = left_[chunk.parent];
    return known_[*SpaceOf(chunk)].spec.groups[chunk.group.value].reuse.chained() && Named(parent) &&
           parent.space == chunk.space && parent.group == chunk.group && parent.position + 1 == chunk.position;
  }

  // All slots that were in use, by their numbers.
  std::vector<LeftShard> Shards(pool::SlotAllocator* slots_here) const {
    std::vector<LeftShard> shards;
    for (ChunkIndex i = 0; i < left_.places(); ++i) {
      const Chunk& chunk = left_[i];
      if (!chunk.has_slots()) continue;
      const std::span<const SlotRef> slots = left_.SlotsOf(chunk);
      const std::span<const Bytes> bytes = left_.SlotBytesOf(chunk);
      for (uint32_t s = 0; s < slots.size(); ++s) {
        const absl::StatusOr<pool::SlotClass> size = slots_here->ClassFor(bytes[s]);
        if (size.ok()) shards.push_back({slots[s].index, i, s, *size});
      }
    }
    for (const RestingSlot& slot : left_.resting()) {
      const absl::StatusOr<pool::SlotClass> size = slots_here->ClassFor({slot.slot_bytes});
      if (size.ok()) shards.push_back({slot.slot, kNoChunk, 0, *size});
    }
    std::sort(shards.begin(), shards.end(), [](const LeftShard& a, const LeftShard& b) { return a.slot < b.slot; });
    return shards;
  }

  // The chunks that were hits, or would be with those that they hang on, all of whose shards are taken.
  SlotsOfChunks Whole(std::span<const LeftShard> shards) const {
    SlotsOfChunks whole;
    for (const LeftShard& shard : shards) {
      if (shard.chunk == kNoChunk) continue;
      const Chunk& chunk = left_[shard.chunk];
      const bool sealed = chunk.state == ChunkState::kSealed ||
                          (planted == PlantedBug::kHalfStoreTakenOver && chunk.state == ChunkState::kFilling);
      if (!sealed || !Named(chunk) || !Hangs(chunk)) continue;
      std::vector<SlotRef>& slots = whole[shard.chunk];
      slots.resize(known_[*SpaceOf(chunk)].spec.groups[chunk.group.value].shards());
      slots[shard.shard] = shard.taken;
    }
    absl::erase_if(whole, [](const auto& chunk) {
      return std::any_of(chunk.second.begin(), chunk.second.end(), [](SlotRef slot) { return !slot; });
    });
    return whole;
  }

  // They, and with a disk what they hang on that isn't in slots, and is a hit again when the disk says so (ChunksFound): parents before
  // children, and in the same order each time.
  std::vector<ChunkIndex> WithAncestors(const SlotsOfChunks& whole, bool disk) const {
    absl::flat_hash_map<ChunkIndex, ChunkIndex> all;
    std::vector<ChunkIndex> order;
    const auto add = [&](ChunkIndex i) {
      const bool added = all.emplace(i, i).second;
      if (added) order.push_back(i);
      return added;
    };
    for (const auto& [chunk, slots] : whole) {
      add(chunk);
      for (ChunkIndex i = left_[chunk].parent; disk && i != kNoChunk && Waits(left_[i]) && Hangs(left_[i]) && add(i);)
        i = left_[i].parent;
    }
    std::sort(order.begin(), order.end(), [this](ChunkIndex a, ChunkIndex b) {
      return std::pair(left_[a].position, a) < std::pair(left_[b].position, b);
    });
    return order;
  }

 private:
  // It may be on disk: it was, or the core before was waiting for the disk to say so.
  static bool Waits(const Chunk& chunk) { return chunk.on_disk() || chunk.state == ChunkState::kGhost; }

  const LeftIndex& left_;
  std::span<const std::optional<SpaceId>> ids_;
  const Spaces& known_;
};

}  // namespace

Core::TakenOver Core::TakeOver(const LeftIndex& left, std::span<const std::optional<SpaceId>> spaces) {
  KVIST_CHECK(spaces.size() == left.spaces().size() && slots_.live_slots() == 0);
  const Heritage heritage(left, spaces, spaces_);
  std::vector<LeftShard> shards = heritage.Shards(&slots_);
  std::vector<SlotRef> taken;
  for (size_t k = 0; k < shards.size();) {
    size_t end = k + 1;
    while (end < shards.size() && shards[end].slot == shards[k].slot) ++end;
    if (const std::optional<SlotRef> slot = slots_.Retake(shards[k].size, shards[k].slot)) {
      taken.push_back(*slot);
      // One that two chunks have changed hands when the core ended: nobody can say whose bytes these are.
      if (end == k + 1) shards[k].taken = *slot;
    }
    k = end;
  }

  const SlotsOfChunks whole = heritage.Whole(shards);
  const std::vector<ChunkIndex> order = heritage.WithAncestors(whole, options_.disk.has_value());
  absl::flat_hash_map<ChunkIndex, ChunkIndex> here;  // what they are in this core
  TakenOver told;
  for (const ChunkIndex i : order) {
    const Chunk& old = left[i];
    const SpaceId space = *heritage.SpaceOf(old);
    const auto parent = here.find(old.parent);
    if (old.parent != kNoChunk && parent == here.end()) continue;
    if (chunks_.Find(space, old.group, old.key) != kNoChunk) continue;
    const auto slots = whole.find(i);
    if (slots == whole.end() && tenants_[spaces_[space].tenant].ghosts >= options_.ghosts_max) continue;
    const ChunkIndex chunk = placement_.Add(space, old.group, old.key, old.parent == kNoChunk ? kNoChunk : parent->second);
    here.emplace(i, chunk);
    if (slots == whole.end()) continue;
    placement_.Resume(chunk, slots->second);
    chunks_[chunk].disk_use = ages_.now();
    ++told.chunks;
    told.bytes += BytesOf(chunk);
  }
  // Nobody knows any more when they were used: in any order, but not by depth.
  std::vector<ChunkIndex> leaves;
  for (const auto& [old, chunk] : here) {
    if (chunks_[chunk].state == ChunkState::kSealed && !chunks_[chunk].busy()) leaves.push_back(chunk);
  }
  std::sort(leaves.begin(), leaves.end(), [this](ChunkIndex a, ChunkIndex b) {
    return std::pair(chunks_[a].key, a) < std::pair(chunks_[b].key, b);  // groups and spaces share keys
  });
  for (const ChunkIndex chunk : leaves) placement_.PolicyOf(chunk).Returned(chunk);
  // What of them is on disk already is not to be written again.
  disk_told_ = told.chunks == 0;
  // Ancestors of what couldn't go on.
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    const auto chunk = here.find(*i);
    if (chunk == here.end() || chunks_[chunk->second].detached) continue;  // its turn comes
    if (chunks_[chunk->second].state == ChunkState::kGhost) placement_.Collect(chunk->second);
  }

  enum class Fate : uint8_t { kFree, kRests, kGoesOn };
  absl::flat_hash_map<uint32_t, Fate> fates;  // of each slot: where its chunks differ the last of these
  for (const LeftShard& shard : shards) {
    const bool goes_on = whole.contains(shard.chunk) && here.contains(shard.chunk);
    const bool sealed = shard.chunk != kNoChunk && left[shard.chunk].state == ChunkState::kSealed;
    const bool quiet = (shard.taken && sealed) || planted == PlantedBug::kSlotInDoubtReused;
    Fate& fate = fates[shard.slot];
    fate = std::max(fate, goes_on ? Fate::kGoesOn : quiet ? Fate::kFree : Fate::kRests);
  }
  std::vector<SlotRef> rest;
  for (const SlotRef slot : taken) {
    const Fate fate = fates[slot.index];
    if (fate == Fate::kRests) rest.push_back(slot);
    if (fate == Fate::kFree) slots_.Free(slot);
  }
  told.in_doubt = rest.size();
  placement_.Doubt(std::move(rest));
  return told;
}

}  // namespace kvist::core
