// What the core does when chunks are leased that are in a tier below: they are read when there are slots for them, and loads of them begin
// when all reads have.

#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

uint32_t Core::Fetch(LeaseId id, SpaceId space) {
  Lease& lease = leases_[id];
  const std::vector<GroupSpec>& specs = spaces_[space].spec.groups;
  uint32_t reading = 0;
  const auto groups = static_cast<uint16_t>(specs.size());
  for (uint16_t group = 0; group < groups; ++group) {
    const ReuseRule& reuse = specs[group].reuse;
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    for (const ChunkIndex chunk : needed.subspan(lease.FirstOf(reuse) - reuse.FirstNeeded(lease.chunks))) {
      if (chunks_[chunk].state == ChunkState::kBelow) lease.to_read.push_back(chunk);
      reading += chunks_[chunk].state == ChunkState::kReading;
    }
  }
  chunks_.Charge(lease.to_read.size());
  if (lease.to_read.empty()) return reading;
  lease.read_turn = read_queue_.Add(id);
  return reading + static_cast<uint32_t>(lease.to_read.size());
}

void Core::ReadFor(const Lease& lease, std::span<const ChunkIndex> waited_for) {
  const absl::flat_hash_set<ChunkIndex> to_read(lease.to_read.begin(), lease.to_read.end());
  chunks_.Charge(lease.to_read.size());
  for (const ChunkIndex chunk : waited_for) {
    if (!to_read.contains(chunk)) read_queue_.Add({RefOf(chunk), lease.by_layer});
  }
}

void Core::BeginReads(Effects* out) {
  const uint64_t until = chunks_.work() + options_.slice_work;
  const auto spent = [&] { return chunks_.work() >= until || placement_.spent(); };
  for (uint32_t t = 0; t < tenants_.size(); ++t) tenants_[TenantId{t}].read_waits = {};
  const size_t before = reads_.size();
  // Whether the chunk needs no read any more, or it was begun; not when its tenant has no room now.
  const auto begin = [&](ChunkIndex chunk, bool by_layer) {
    chunks_.Charge(1);
    if (chunks_[chunk].state != ChunkState::kBelow) return true;
    Tenant& tenant = tenants_[spaces_[chunks_[chunk].space].tenant];
    if (tenant.read_waits > Bytes{}) return false;
    // Half of the reserve is for stores, while more of it is being written.
    const bool stores_first = tenant.writing > Bytes{} && AtHand(tenant) < ReserveOf(tenant) / 2;
    if (!stores_first && BeginRead(chunk, by_layer, MayMakeRoomFrom(), out)) return true;
    tenant.read_waits = BytesOf(chunk);
    return false;
  };
  for (size_t left = read_queue_.orphans(); left > 0 && !spent(); --left) {
    const ReadQueue::Orphan orphan = read_queue_.TakeOrphan();
    const ChunkIndex chunk = Find(orphan.chunk);
    if (chunk != kNoChunk && chunks_[chunk].holds > 0 && !begin(chunk, orphan.by_layer)) read_queue_.Add(orphan);
  }
  for (uint64_t turn = read_queue_.After(0); turn != 0 && !spent(); turn = read_queue_.After(turn)) {
    Lease& lease = leases_[read_queue_.LeaseOf(turn)];
    std::vector<ChunkIndex>& chunks = lease.to_read;
    while (!chunks.empty() && !spent() && begin(chunks.back(), lease.by_layer)) chunks.pop_back();
    chunks_.Charge(1);
    if (chunks.empty()) read_queue_.Leave(turn);
  }
  // When none could be begun a Tick can't begin any, either: what makes room is an event (or an emptied slab, for which waits_for_clock looks).
  more_reads_ = spent() && reads_.size() > before;
  BeginWaiting(out);
}

bool Core::BeginRead(ChunkIndex i, bool by_layer, Tenants::Victims victims, Effects* out) {
  if (!placement_.Reserve(i, spaces_[chunks_[i].space].near, victims)) return false;
  Chunk& chunk = chunks_[i];
  ++chunk.holds;
  const Tier from = ReadFrom(chunk);
  reads_.Begin(i, from, BytesOf(i));
  waiting_.Begun(RefOf(i));
  const std::span<const DiskPlace> places = from == Tier::kSsd ? placement_.PlacesOf(i) : std::span<const DiskPlace>();
  const std::span<const SlotRef> slots = placement_.SlotsOf(i);
  const DiskForm form = from == Tier::kSsd ? placement_.FormOf(i) : DiskForm{};
  out->push_back(ReadStarted{RefOf(i),
                             chunk.space,
                             chunk.group,
                             chunk.key,
                             chunk.position,
                             by_layer,
                             {places.begin(), places.end()},
                             {slots.begin(), slots.end()},
                             from,
                             form});
  return true;
}

void Core::BeginWaiting(Effects* out) {
  for (; waiting_.has_begun(); waiting_.DropFirstBegun()) {
    // Whoever waited may have given up, and the chunk have gone, or gone back below: then whoever waits now is told by its next read.
    const ChunkIndex i = Find(waiting_.first_begun());
    while (i != kNoChunk && chunks_[i].state != ChunkState::kBelow && waiting_.Has(i)) {
      if (placement_.spent()) return;
      chunks_.Charge(1);
      const OpId id = waiting_.Take(i);
      Op* op = ops_.Find(id);
      if (--op->reads_left == 0) BeginCopy(id, op, out);
    }
  }
}

void Core::On(const ReadFinished& event, Effects* out) {
  const ChunkIndex i = Find(event.chunk);
  if (i == kNoChunk || !reads_.Has(i)) return;  // a late duplicate
  Chunk& chunk = chunks_[i];
  chunks_.Charge(1);
  const Tier from = ReadFrom(chunk);
  const bool remote = from == Tier::kRemote;
  reads_.End(i, from, BytesOf(i));
  const bool moves = to_move_.erase(i) > 0;
  const bool lost = places_lost_.erase(i) > 0;
  --chunk.holds;
  if (event.status.ok()) {
    ++(remote ? counters_.remote_chunks_read : counters_.chunks_read);
    chunk.state = ChunkState::kSealed;
    ++spaces_[chunk.space].sealed;
    placement_.PolicyOf(i).Sealed(i);
    placement_.Moved(i);
    NoteCame(i, Tier::kDram);
    if (lost && chunk.disk == DiskCopy::kThere) placement_.ForgetPlaces(i);
    // One that is only moved goes before those that are used (Offer).
    const bool cleared = chunk.detached || chunk.epoch != spaces_[chunk.space].epoch;
    if (moves && !cleared && chunk.disk == DiskCopy::kThere && MayWrite()) BeginWrite(i, out);
  } else {
    ++(remote ? counters_.remote_reads_failed : counters_.reads_failed);
    counters_.remote_chunks_missing += absl::IsNotFound(event.status);
    if (absl::IsDataLoss(event.status)) {
      ++(remote ? counters_.remote_chunks_corrupt : counters_.chunks_corrupt_on_disk);
      out->push_back(CorruptionFound{chunk.space, 1, from});
    }
    // Nobody finds it any more. Those who had it leased are told when they load it, or by their copies.
    chunk.remote = RemoteCopy::kNone;
    if (!remote) lost || absl::IsDataLoss(event.status) ? placement_.ForgetPlaces(i) : placement_.LeavePlaces(i);
    if (!chunk.detached) placement_.Detach(i);
    chunk.state = ChunkState::kLost;
  }
  UseEnded(i);
}

void Core::EndWaiting(OpId id, absl::Status status, Effects* out) {
  const Op op = ops_.Take(id);
  chunks_.Charge(op.chunks.size() + op.reads.size());
  for (const ChunkIndex chunk : op.reads) waiting_.Remove(chunk, id);
  for (const ChunkIndex chunk : op.chunks) {
    --chunks_[chunk].holds;
    UseEnded(chunk);
  }
  EndOp(op, id, {op.session, op.tag, std::move(status)}, out);
}

}  // namespace kvist::core
