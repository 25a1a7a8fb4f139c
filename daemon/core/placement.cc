#include "daemon/core/placement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

SlotRef* Placement::Shards(const Chunk& chunk) {
  const uint32_t shards = Group(chunk).shards();
  return shards == 1 ? const_cast<SlotRef*>(&chunk.slot) : slot_runs_.At(shards, chunk.slot.index);
}

DiskPlace* Placement::Places(const Chunk& chunk) {
  const uint32_t shards = Group(chunk).shards();
  return shards == 1 ? const_cast<DiskPlace*>(&chunk.place) : place_runs_.At(shards, chunk.place.segment);
}

SlotRef Placement::SlotOf(ChunkIndex i, Rank rank) const {
  return const_cast<Placement*>(this)->Shards(chunks_[i])[Group(chunks_[i]).ShardOf(rank)];
}

std::span<const SlotRef> Placement::SlotsOf(ChunkIndex i) const {
  return {const_cast<Placement*>(this)->Shards(chunks_[i]), Group(chunks_[i]).shards()};
}

// ---- Slots ------------------------------------------------------------------------------------------------------------------

void Placement::KeepParent(const Chunk& chunk) {
  if (chunk.parent == kNoChunk) return;
  ++chunks_[chunk.parent].residents;
  PolicyOf(chunk.parent).Withdrawn(chunk.parent);
}

void Placement::LetParentGo(const Chunk& chunk) {
  if (chunk.parent == kNoChunk) return;
  Chunk& parent = chunks_[chunk.parent];
  if (--parent.residents == 0 && parent.state == ChunkState::kSealed && !parent.detached && !parent.busy())
    PolicyOf(chunk.parent).Exposed(chunk.parent);
}

ChunkIndex Placement::Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent) {
  ++tenants_[spaces_[space].tenant].ghosts;
  return chunks_.Add(space, group, key, parent, spaces_[space].epoch);
}

ChunkIndex Placement::AddPrivate(SpaceId space, GroupId group) {
  ++tenants_[spaces_[space].tenant].ghosts;
  return chunks_.AddPrivate(space, group);
}

void Placement::SetOwners(ChunkIndex i) {
  for (const SlotRef slot : SlotsOf(i)) slots_.SetOwner(slot, i);
}

bool Placement::HasClass(ChunkIndex i, pool::SlotClass size) const {
  const Chunk& chunk = chunks_[i];
  const std::vector<pool::SlotClass>& classes = spaces_[chunk.space].classes[chunk.group.value];
  return std::find(classes.begin(), classes.end(), size) != classes.end();
}

bool Placement::Reserve(ChunkIndex i, std::span<const uint32_t> near, Tenants::Victims victims, uint32_t wanted) {
  Chunk& chunk = chunks_[i];
  const bool ghost = chunk.state == ChunkState::kGhost;
  KVIST_CHECK(ghost || chunk.state == ChunkState::kBelow);
  Space& space = spaces_[chunk.space];
  const std::vector<pool::SlotClass>& classes = space.classes[chunk.group.value];
  const auto count = static_cast<uint32_t>(classes.size());
  const uint32_t ranks_per_shard = Group(chunk).ranks_per_shard;
  // The chunk itself must outlive the evictions below: they could otherwise collect a ghost. And its parent must stay where it is.
  ++chunk.holds;
  KeepParent(chunk);
  if (count > 1) chunk.slot.index = slot_runs_.New(count);
  SlotRef* shards = Shards(chunk);
  const Bytes bytes = space.chunk_bytes(chunk.group);
  Tenant& tenant = tenants_[space.tenant];
  uint32_t reserved = 0;
  for (uint32_t evicted = 0; reserved < count;) {
    const bool at_quota = tenant.used + bytes > tenant.quota;
    const uint32_t region = near.empty() ? 0 : near[reserved * ranks_per_shard];
    const std::optional<SlotRef> slot = at_quota ? std::nullopt : slots_.Allocate(classes[reserved], region);
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
    const Vacating::For whom{classes[reserved], space.tenant};
    if (!at_quota && (vacating_.Claim(whom.size) || vacating_.Expire(now_))) continue;
    const bool comes = !at_quota && vacating_.Comes(whom, now_);
    const ChunkIndex victim =
        at_quota ? tenants_.NextVictimOf(space.tenant, victims) : NextVictim(space.tenant, bytes, victims);
    if (comes && victim != kNoChunk && !HasClass(victim, whom.size)) {
      PolicyOf(victim).Exposed(victim);  // it is the next again, or the next but those that are on disk
      const uint64_t chunks = std::min<uint64_t>(wanted, (tenant.quota - tenant.used) / bytes);
      const auto of_its_size = static_cast<uint64_t>(std::count(classes.begin(), classes.end(), whom.size));
      if (vacating_.Want(whom, chunks * of_its_size, now_)) of_chunks_ = bytes;
      break;
    }
    if (!Evict(victim)) break;
  }
  --chunk.holds;
  if (reserved == count) {
    SetOwners(i);
    chunk.state = ghost ? ChunkState::kFilling : ChunkState::kReading;
    space.bytes += bytes;
    tenant.used += bytes;
    --(ghost ? tenant.ghosts : space.below);
    return true;
  }
  chunks_.Charge(reserved);
  while (reserved > 0) slots_.Free(shards[--reserved]);
  if (count > 1) slot_runs_.Free(count, chunk.slot.index);
  LetParentGo(chunk);
  return false;
}

void Placement::Unreserve(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(chunk.has_slots());
  KVIST_CHECK(chunk.holds == 0 || planted == PlantedBug::kSlotReusedUnderHold);
  Space& space = spaces_[chunk.space];
  const uint32_t count = Group(chunk).shards();
  const SlotRef* shards = Shards(chunk);
  for (uint32_t shard = 0; shard < count; ++shard) slots_.Free(shards[shard]);
  chunks_.Charge(count);
  if (count > 1) slot_runs_.Free(count, chunk.slot.index);
  if (chunk.state == ChunkState::kSealed) {
    --space.sealed;
    PolicyOf(i).Dropped(i);
  }
  const bool sealed = chunk.state == ChunkState::kSealed;
  const Bytes bytes = space.chunk_bytes(chunk.group);
  space.bytes -= bytes;
  tenants_[space.tenant].used -= bytes;
  const bool below = chunk.disk == DiskCopy::kThere || chunk.remote == RemoteCopy::kThere;
  if (below && !chunk.detached) {
    chunk.state = ChunkState::kBelow;
    ++space.below;
  } else {
    chunk.state = ChunkState::kGhost;
    ++tenants_[space.tenant].ghosts;
  }
  if (sealed) Moved(i);
  LetParentGo(chunk);
}

void Placement::Resume(ChunkIndex i, std::span<const SlotRef> slots) {
  Chunk& chunk = chunks_[i];
  const uint32_t count = Group(chunk).shards();
  KVIST_CHECK(chunk.state == ChunkState::kGhost && !chunk.detached && slots.size() == count);
  KeepParent(chunk);
  if (count > 1) chunk.slot.index = slot_runs_.New(count);
  std::copy(slots.begin(), slots.end(), Shards(chunk));
  SetOwners(i);
  Space& space = spaces_[chunk.space];
  Tenant& tenant = tenants_[space.tenant];
  const Bytes bytes = space.chunk_bytes(chunk.group);
  chunk.state = ChunkState::kSealed;
  ++space.sealed;
  space.bytes += bytes;
  tenant.used += bytes;
  --tenant.ghosts;
  PolicyOf(i).Sealed(i);
}

void Placement::Doubt(std::vector<SlotRef> slots) {
  KVIST_CHECK(in_doubt_.empty());
  constexpr size_t kPerSection = 4096;
  constexpr Bytes kSection{sizeof(RestingSlot) * kPerSection};
  in_doubt_ = std::move(slots);
  RestingSlot* section = nullptr;
  for (size_t i = 0; i < in_doubt_.size(); ++i) {
    if (i % kPerSection == 0)
      section = reinterpret_cast<RestingSlot*>(sections_.New(static_cast<uint32_t>(ImageSection::kResting), 0, kSection));
    resting_.push_back(section + i % kPerSection);
    *resting_.back() = {slots_.PlaceOf(in_doubt_[i]).length.value, in_doubt_[i].index, 1};
  }
}

void Placement::EndDoubt() {
  slots_.Free(in_doubt_.back());
  in_doubt_.pop_back();
  resting_.back()->rests = 0;
  resting_.pop_back();
  chunks_.Charge(1);
}

// ---- Slots that move --------------------------------------------------------------------------------------------------------

// Holds are copies into the slots, writes below out of them, and loads that end here; loads that end further down the chain aren't counted
// here, and Vacating waits for them.
SlotRef* Placement::Movable(ChunkIndex i, SlotRef slot) {
  const Chunk& chunk = chunks_[i];
  if (chunk.state != ChunkState::kSealed || chunk.holds > 0) return nullptr;
  const std::span<SlotRef> shards(Shards(chunk), Group(chunk).shards());
  const auto at = std::find(shards.begin(), shards.end(), slot);
  return at == shards.end() ? nullptr : &*at;
}

std::optional<SlotsCopyStarted> Placement::GoOnVacating() {
  uint32_t looked_at = 0;
  const std::span<const Vacating::Move> moves =
      vacating_.Step([this](uint32_t owner, SlotRef slot) { return Movable(owner, slot) != nullptr; }, now_, &looked_at);
  chunks_.Charge(looked_at + moves.size());
  if (moves.empty()) return std::nullopt;
  SlotsCopyStarted copy{slots_.PlaceOf(moves[0].to).length, {}};
  for (const Vacating::Move& move : moves) copy.slots.emplace_back(move.from, move.to);
  return copy;
}

ChunkIndex Placement::NextVictim(TenantId whose, Bytes bytes, Tenants::Victims victims) {
  if (counted_ != vacating_.changes()) {
    for (uint32_t t = 0; t < tenants_.size(); ++t) tenants_[TenantId{t}].coming = vacating_.ComingFor(TenantId{t});
    counted_ = vacating_.changes();
  }
  return tenants_.NextVictim(whose, bytes, victims);
}

void Placement::MakeRoom() {
  vacating_.Expire(now_);
  const Vacating::For whom = vacating_.wanted_for();
  if (const Tenant& tenant = tenants_[whom.tenant]; tenant.used + of_chunks_ > tenant.quota) vacating_.WantNoMore();
  for (uint32_t evicted = 0; MakesRoom() && evicted < kEvictionsMax && !spent(); ++evicted) {
    if (vacating_.Comes(whom, now_) || !MakesRoom()) break;
    if (!Evict(NextVictim(whom.tenant, of_chunks_, Tenants::Victims::kAny))) vacating_.WantNoMore();
  }
}

void Placement::SlotsCopied() {
  chunks_.Charge(Vacating::kMovesMax);
  vacating_.Copied([this](const Vacating::Move& move) {
    SlotRef* const at = Movable(move.owner, move.from);
    if (at == nullptr) return false;
    *at = move.to;
    return true;
  });
}

// ---- On disk ----------------------------------------------------------------------------------------------------------------

void Placement::SetPlaces(ChunkIndex i, std::span<const DiskPlace> places, DiskForm form) {
  Chunk& chunk = chunks_[i];
  const uint32_t count = Group(chunk).shards();
  KVIST_CHECK(!chunk.on_disk() && places.size() == count);
  if (count > 1) chunk.place.segment = place_runs_.New(count);
  std::copy(places.begin(), places.end(), Places(chunk));
  if (form != DiskForm{}) {
    forms_.emplace(i, form);
    ++encoded_.chunks;
    encoded_.bytes += form.bytes * count;
    encoded_.slot_bytes += spaces_[chunk.space].chunk_bytes(chunk.group);
  }
  chunk.disk = DiskCopy::kThere;
  chunks_.Charge(count);
  BecomeBelow(chunk);
  Moved(i);
}

ChunkIndex Placement::AddOnDisk(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent,
                                std::span<const DiskPlace> places, DiskForm form) {
  const ChunkIndex i = Add(space, group, key, parent);
  Revive(i, places, form);
  return i;
}

void Placement::Revive(ChunkIndex i, std::span<const DiskPlace> places, DiskForm form) {
  KVIST_CHECK(chunks_[i].state == ChunkState::kGhost && !chunks_[i].detached);
  SetPlaces(i, places, form);
}

DiskForm Placement::FormOf(ChunkIndex i) const {
  const auto form = forms_.find(i);
  return form == forms_.end() ? DiskForm{} : form->second;
}

std::span<const DiskPlace> Placement::PlacesOf(ChunkIndex i) const {
  const Chunk& chunk = chunks_[i];
  KVIST_CHECK(chunk.on_disk());
  return {const_cast<Placement*>(this)->Places(chunk), Group(chunk).shards()};
}

bool Placement::IsOnDisk(SpaceId space, GroupId group, const ChunkKey& key, uint32_t position) const {
  const ChunkIndex i = chunks_.Find(space, group, key);
  return i != kNoChunk && chunks_[i].on_disk() && chunks_[i].position == position;
}

void Placement::ForgetPlaces(ChunkIndex i, bool replaced) {
  Chunk& chunk = chunks_[i];
  const std::span<const DiskPlace> places = PlacesOf(i);
  chunks_.Charge(places.size());
  if (chunk.detached && !replaced) replaced = IsOnDisk(chunk.space, chunk.group, chunk.key, chunk.position);
  PlacesFreed::Chunk freed{chunk.space, chunk.group, chunk.key, chunk.position, {places.begin(), places.end()}, replaced};
  if (const auto encoded = forms_.extract(i); !encoded.empty()) {
    freed.form = encoded.mapped();
    --encoded_.chunks;
    encoded_.bytes -= freed.form.bytes * places.size();
    encoded_.slot_bytes -= spaces_[chunk.space].chunk_bytes(chunk.group);
  }
  forgotten_.push_back(std::move(freed));
  if (places.size() > 1) place_runs_.Free(static_cast<uint32_t>(places.size()), chunk.place.segment);
  chunk.place = {};
  chunk.disk = DiskCopy::kNone;
  if (chunk.remote != RemoteCopy::kThere) BecomeGhost(chunk);
  Moved(i);
}

void Placement::LeavePlaces(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  Space& space = spaces_[chunk.space];
  ForgetPlaces(i);
  if (chunk.detached || chunk.epoch != space.epoch) return;
  forgotten_.back().row_stays = space.rows_left = true;
}

void Placement::BecomeBelow(Chunk& chunk) {
  if (chunk.state != ChunkState::kGhost) return;
  chunk.state = ChunkState::kBelow;
  ++spaces_[chunk.space].below;
  --tenants_[spaces_[chunk.space].tenant].ghosts;
}

void Placement::BecomeGhost(Chunk& chunk) {
  if (chunk.state != ChunkState::kBelow) return;
  chunk.state = ChunkState::kGhost;
  --spaces_[chunk.space].below;
  ++tenants_[spaces_[chunk.space].tenant].ghosts;
}

// ---- In a remote store ------------------------------------------------------------------------------------------------------

ChunkIndex Placement::AddRemote(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent) {
  const ChunkIndex i = Add(space, group, key, parent);
  SetRemote(i);
  return i;
}

void Placement::SetRemote(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  chunks_.Charge(1);
  chunk.remote = RemoteCopy::kThere;
  BecomeBelow(chunk);
  Moved(i);
}

void Placement::ForgetRemote(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  const bool there = chunk.remote == RemoteCopy::kThere;
  chunk.remote = RemoteCopy::kNone;
  if (!chunk.on_disk()) BecomeGhost(chunk);
  if (there) Moved(i);
}

// ---- Who watches ------------------------------------------------------------------------------------------------------------

ChunkWhere Placement::Where(const Chunk& chunk) {
  const auto bit = [](bool there, Tier tier) { return there ? TierBit(tier) : uint8_t{0}; };
  const uint32_t tiers = bit(chunk.state == ChunkState::kSealed, Tier::kDram) | bit(chunk.on_disk(), Tier::kSsd) |
                         bit(chunk.remote == RemoteCopy::kThere, Tier::kRemote);
  return {chunk.space, chunk.group, chunk.key, static_cast<uint8_t>(chunk.whole() ? tiers : 0)};
}

void Placement::Moved(ChunkIndex i) {
  if (!watched_) return;
  const Chunk& chunk = chunks_[i];
  // What is hidden was told when it was hidden, and its name may be another's by now.
  if (chunk.detached || chunk.epoch != spaces_[chunk.space].epoch) return;
  changed_.chunks.push_back(Where(chunk));
}

void Placement::Detach(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  if (watched_ && IsFound(chunk)) changed_.chunks.push_back({chunk.space, chunk.group, chunk.key});
  chunks_.Detach(i);
}

// ---- Who goes ---------------------------------------------------------------------------------------------------------------

void Placement::MakeFewerGhosts(TenantId tenant) {
  if (!rest_.empty()) return CollectRest(0);
  Evict(tenants_.NextVictimOf(tenant));
}

bool Placement::Evict(ChunkIndex victim) {
  if (victim == kNoChunk) return false;
  // The parent's, too: in a chain it goes next.
  slots_.Prefetch(chunks_[victim].slot);
  if (chunks_[victim].parent != kNoChunk) slots_.Prefetch(chunks_[chunks_[victim].parent].slot);
  ++tenants_[spaces_[chunks_[victim].space].tenant].evictions;
  PolicyOf(victim).Evicted(victim);
  Unreserve(victim);
  demotions_ += chunks_[victim].on_disk();
  Collect(victim);
  ++evictions_;
  return true;
}

void Placement::Collect(ChunkIndex i, uint32_t detached_max, uint64_t until) {
  for (uint32_t removed = 0; i != kNoChunk; ++removed) {
    Chunk& chunk = chunks_[i];
    const bool kept = chunk.whole() && !chunk.detached && !chunk.only_remote();
    if (chunk.needed() || chunk.state == ChunkState::kFilling || kept) break;
    if (removed >= (chunk.detached ? detached_max : kGhostsMax) || chunks_.work() >= until) {
      if (!chunk.detached) Detach(i);  // a ghost that nothing needs: nobody misses it
      rest_.push_back(i);
      break;
    }
    if (chunk.has_slots()) Unreserve(i);
    if (chunk.disk == DiskCopy::kThere) ForgetPlaces(i);
    ForgetRemote(i);
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
  uint64_t live = in_doubt_.size() + vacating_.slots_apart();
  for (const SlotRef slot : in_doubt_) KVIST_CHECK(slots_.IsLive(slot));
  for (ChunkIndex i = 0; i < chunks_.places(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (!chunk.has_slots()) continue;
    const uint32_t count = Group(chunk).shards();
    const SlotRef* shards = const_cast<Placement*>(this)->Shards(chunk);
    for (uint32_t shard = 0; shard < count; ++shard)
      KVIST_CHECK(slots_.IsLive(shards[shard]) && slots_.OwnerOf(shards[shard]) == i);
    live += count;
  }
  KVIST_CHECK(live == slots_.live_slots());
  EncodedOnDisk encoded;
  for (const auto& [i, form] : forms_) {
    const Chunk& chunk = chunks_[i];
    KVIST_CHECK(chunk.on_disk() && form.method != 0);
    ++encoded.chunks;
    encoded.bytes += form.bytes * Group(chunk).shards();
    encoded.slot_bytes += spaces_[chunk.space].chunk_bytes(chunk.group);
  }
  KVIST_CHECK(encoded.chunks == encoded_.chunks && encoded.bytes == encoded_.bytes &&
              encoded.slot_bytes == encoded_.slot_bytes);
}

}  // namespace kvist::core
