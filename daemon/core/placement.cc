#include "daemon/core/placement.h"

#include <algorithm>
#include <optional>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

SlotRef* Placement::Shards(const Chunk& chunk) {
  const uint32_t shards = Group(chunk).shards();
  if (shards == 1) return const_cast<SlotRef*>(&chunk.slot);
  const uint32_t run = chunk.slot.index;
  return &runs_[shards].segments[run / kRunsPerSegment][size_t{run % kRunsPerSegment} * shards];
}

SlotRef Placement::SlotOf(ChunkIndex i, Rank rank) const {
  return const_cast<Placement*>(this)->Shards(chunks_[i])[Group(chunks_[i]).ShardOf(rank)];
}

uint32_t Placement::NewRun(uint32_t shards) {
  Runs& runs = runs_[shards];
  if (!runs.free.empty()) {
    const uint32_t run = runs.free.back();
    runs.free.pop_back();
    return run;
  }
  if (runs.next % kRunsPerSegment == 0)
    runs.segments.push_back(std::make_unique<SlotRef[]>(size_t{kRunsPerSegment} * shards));
  return runs.next++;
}

ChunkIndex Placement::Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent) {
  ++tenants_[spaces_[space].tenant].ghosts;
  return chunks_.Add(space, group, key, parent, spaces_[space].epoch);
}

ChunkIndex Placement::AddPrivate(SpaceId space, GroupId group) {
  ++tenants_[spaces_[space].tenant].ghosts;
  return chunks_.AddPrivate(space, group);
}

bool Placement::Reserve(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(chunk.state == ChunkState::kGhost);
  Space& space = spaces_[chunk.space];
  const std::vector<pool::SlotClass>& classes = space.classes[chunk.group.value];
  const auto count = static_cast<uint32_t>(classes.size());
  // The chunk itself must outlive the evictions below: they could otherwise collect a ghost.
  ++chunk.holds;
  if (count > 1) chunk.slot.index = NewRun(count);
  SlotRef* shards = Shards(chunk);
  const Bytes bytes = space.chunk_bytes(chunk.group);
  Tenant& tenant = tenants_[space.tenant];
  uint32_t reserved = 0;
  for (uint32_t evicted = 0; reserved < count;) {
    const bool at_quota = tenant.used + bytes > tenant.quota;
    const std::optional<SlotRef> slot = at_quota ? std::nullopt : slots_.Allocate(classes[reserved]);
    if (slot.has_value()) {
      chunks_.Charge(1);
      shards[reserved++] = *slot;
      continue;
    }
    if (evicted == kEvictionsMax * count || (evicted > 0 && spent())) break;
    ++evicted;
    if (!rest_.empty()) {
      CollectRest(0);
      continue;
    }
    if (!Evict(at_quota ? tenant.policy->NextVictim() : tenants_.NextVictim())) break;
  }
  --chunk.holds;
  if (reserved == count) {
    chunk.state = ChunkState::kFilling;
    space.bytes += bytes;
    tenant.used += bytes;
    --tenant.ghosts;
    return true;
  }
  chunks_.Charge(reserved);
  while (reserved > 0) slots_.Free(shards[--reserved]);
  if (count > 1) runs_[count].free.push_back(chunk.slot.index);
  return false;
}

void Placement::Unreserve(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(chunk.state == ChunkState::kFilling || chunk.state == ChunkState::kSealed ||
              chunk.state == ChunkState::kPrivate);
  KVIST_CHECK(chunk.holds == 0 || kPlanted == PlantedBug::kSlotReusedUnderHold);
  Space& space = spaces_[chunk.space];
  const uint32_t count = Group(chunk).shards();
  const SlotRef* shards = Shards(chunk);
  for (uint32_t shard = 0; shard < count; ++shard) slots_.Free(shards[shard]);
  chunks_.Charge(count);
  if (count > 1) runs_[count].free.push_back(chunk.slot.index);
  if (chunk.state == ChunkState::kSealed) --space.sealed;
  const Bytes bytes = space.chunk_bytes(chunk.group);
  space.bytes -= bytes;
  tenants_[space.tenant].used -= bytes;
  ++tenants_[space.tenant].ghosts;
  chunk.state = ChunkState::kGhost;
}

void Placement::MakeFewerGhosts(TenantId tenant) {
  if (!rest_.empty()) return CollectRest(0);
  Evict(tenants_[tenant].policy->NextVictim());
}

bool Placement::Evict(ChunkIndex victim) {
  if (victim == kNoChunk) return false;
  ++tenants_[spaces_[chunks_[victim].space].tenant].evictions;
  Unreserve(victim);
  Collect(victim);
  ++evictions_;
  return true;
}

void Placement::Collect(ChunkIndex i, uint32_t detached_max, uint64_t until) {
  for (uint32_t removed = 0; i != kNoChunk; ++removed) {
    Chunk& chunk = chunks_[i];
    if (chunk.needed() || chunk.state == ChunkState::kFilling) break;
    if (chunk.state == ChunkState::kSealed && !chunk.detached) {
      PolicyOf(i).Exposed(i);
      break;
    }
    if (removed >= (chunk.detached ? detached_max : kGhostsMax) || chunks_.work() >= until) {
      if (!chunk.detached) chunks_.Detach(i);  // a ghost that nothing needs: nobody misses it
      rest_.push_back(i);
      break;
    }
    if (chunk.state == ChunkState::kSealed || chunk.state == ChunkState::kPrivate) Unreserve(i);
    PolicyOf(i).Withdrawn(i);
    --tenants_[spaces_[chunk.space].tenant].ghosts;
    i = chunks_.Remove(i);
  }
}

void Placement::CollectRest(uint64_t until) {
  do {
    const ChunkIndex i = rest_.back();
    rest_.pop_back();
    Collect(i, UINT32_MAX, std::max(until, chunks_.work() + 1));
  } while (chunks_.work() < until && !rest_.empty());
}

void Placement::CheckInvariants() const {
  uint64_t live = 0;
  for (ChunkIndex i = 0; i < chunks_.places(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kFree || chunk.state == ChunkState::kGhost) continue;
    const uint32_t count = Group(chunk).shards();
    const SlotRef* shards = const_cast<Placement*>(this)->Shards(chunk);
    for (uint32_t shard = 0; shard < count; ++shard) KVIST_CHECK(slots_.IsLive(shards[shard]));
    live += count;
  }
  KVIST_CHECK(live == slots_.live_slots());
}

}  // namespace kvist::core
