#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::CheckInvariants() {
  const ChunkIndex places = chunks_.places();
  std::vector<uint32_t> children(places), residents(places), keeps(places), holds(places), rest(places);
  std::vector<uint64_t> sealed(spaces_.size()), below(spaces_.size());
  uint64_t writes = 0;
  Bytes writing{}, remote_writing{};
  std::vector<Bytes> bytes(spaces_.size());
  std::vector<uint64_t> ghosts(tenants_.size());
  std::vector<Bytes> clean(tenants_.size()), awaiting(tenants_.size());
  std::vector<uint64_t> above(tenants_.size());
  uint64_t in_use = 0, filling = 0;

  const absl::flat_hash_set<std::pair<ChunkIndex, uint64_t>> quiet(quiet_.begin(), quiet_.end());
  for (const ChunkIndex chunk : placement_.rest()) ++rest[chunk];
  absl::flat_hash_map<InstanceId, Bytes> leased, allocated;
  leases_.ForEach([&](LeaseId, const Lease& lease) {
    for (const ChunkIndex chunk : lease.kept) ++keeps[chunk];
    leased[lease.instance] += lease.bytes;
  });
  for (const auto& [instance, sum] : leased) KVIST_CHECK(leases_.used(instance) == sum);
  pins_.ForEach([&](SpaceId, const Pins::Named& named) {
    for (const ChunkIndex chunk : named.second.kept) ++keeps[chunk];
  });
  size_t numbers = pins_.size();
  for (const auto& [space, pins] : cleared_pins_) {
    numbers += pins.size();
    for (const auto& [name, pin] : pins) {
      for (const ChunkIndex chunk : pin.kept) ++keeps[chunk];
    }
  }
  for (const auto& [id, job] : prompt_jobs_) {
    KVIST_CHECK(jobs_.Find(id) != nullptr && jobs_.Find(id)->state == JobState::kRunning);
    for (const PromptJob::Kept& kept : job.kept) ++keeps[kept.chunk];
  }
  for (const ChunkIndex chunk : let_go_) ++keeps[chunk];
  KVIST_CHECK(pins_.CountsExpiring());
  KVIST_CHECK(numbers == pins_.numbers() && PinsAfter(0, SIZE_MAX).rows.size() == pins_.size());
  Bytes private_bytes{};
  allocations_.ForEach([&](AllocationId, const Allocation& allocation) {
    for (const ChunkIndex chunk : allocation.chunks) {
      ++keeps[chunk];
      KVIST_CHECK(chunks_[chunk].state == ChunkState::kPrivate);
    }
    private_bytes += allocation.bytes;
    allocated[allocation.instance] += allocation.bytes;
  });
  for (const auto& [instance, sum] : allocated) KVIST_CHECK(allocations_.used(instance) == sum);
  KVIST_CHECK(private_bytes == private_bytes_);
  for (uint32_t t = 0; t < tenants_.size(); ++t) private_bytes -= tenants_[TenantId{t}].private_bytes;
  KVIST_CHECK(private_bytes == Bytes{});
  ops_.ForEach([&](OpId id, const Op& op) {
    for (const ChunkIndex chunk : op.chunks) ++holds[chunk];
    const Session* session = sessions_.Find(op.session);
    KVIST_CHECK(session != nullptr && session->ops.contains(id.Pack()));
    if (session->closed && op.reads_left > 0) KVIST_CHECK(std::count(given_up_.begin(), given_up_.end(), id) == 1);
  });
  absl::flat_hash_set<uint64_t> begun;
  for (const ChunkRef chunk : waiting_.begun()) begun.insert(chunk.Pack());
  for (const auto& [chunk, op] : waiting_.all()) {
    KVIST_CHECK(ops_.Find(OpId::Unpack(op))->reads_left > 0);
    KVIST_CHECK(chunks_[chunk].state == ChunkState::kBelow || begun.contains(RefOf(chunk).Pack()));
  }
  for (ChunkIndex i = 0; i < places; ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kFree) continue;
    ++in_use;
    if (reads_.Has(i)) ++holds[i];
    KVIST_CHECK((chunk.state == ChunkState::kReading) == reads_.Has(i));
    if (chunk.state == ChunkState::kLost) KVIST_CHECK(chunk.detached && chunk.holds > 0 && chunk.disk == DiskCopy::kNone);
    if (chunk.state == ChunkState::kLost) KVIST_CHECK(chunk.remote == RemoteCopy::kNone);
    if (chunk.state == ChunkState::kBelow) {
      ++below[chunk.space.value];
      KVIST_CHECK(chunk.disk == DiskCopy::kThere || chunk.remote == RemoteCopy::kThere);
    }
    // (One that is detached, and waits to be collected behind others, may have lost its slots meanwhile.)
    if (chunk.state == ChunkState::kGhost && !chunk.detached) KVIST_CHECK(chunk.remote == RemoteCopy::kNone);
    if (chunk.remote == RemoteCopy::kWriting) {
      remote_writing += BytesOf(i);
      ++holds[i];
      KVIST_CHECK(chunk.state == ChunkState::kSealed);
    }
    if (chunk.disk == DiskCopy::kWriting || chunk.disk == DiskCopy::kMoving) {
      writing += BytesOf(i);
      ++writes;
      ++holds[i];
      KVIST_CHECK(chunk.state == ChunkState::kSealed && writes_.Has(i));
    }
    KVIST_CHECK(chunk.parent == kNoChunk || spaces_[chunk.space].spec.groups[chunk.group.value].reuse.chained());
    if (chunk.parent != kNoChunk) {
      const Chunk& parent = chunks_[chunk.parent];
      ++children[chunk.parent];
      residents[chunk.parent] += chunk.has_slots();
      KVIST_CHECK(parent.state != ChunkState::kFree && parent.space == chunk.space && parent.group == chunk.group);
      KVIST_CHECK(chunk.position == parent.position + 1);
      KVIST_CHECK(chunk.epoch >= parent.epoch);
    }
    if (!chunk.detached) KVIST_CHECK(chunks_.Find(chunk.space, chunk.group, chunk.key) == i);
    if (chunk.state == ChunkState::kSealed) ++sealed[chunk.space.value];
    if (chunk.state == ChunkState::kGhost) ++ghosts[spaces_[chunk.space].tenant.value];
    if (chunk.state == ChunkState::kPrivate) KVIST_CHECK(chunk.detached && chunk.children == 0);
    if (chunk.has_slots()) { bytes[chunk.space.value] += spaces_[chunk.space].chunk_bytes(chunk.group); }
    const Fill* fill = fills_.Find(i);
    if (fill != nullptr) {
      ++filling;
      KVIST_CHECK((fill->stored & ~fill->claimed) == 0 && (fill->claimed & ~fill->all) == 0);
      KVIST_CHECK(!fill->doomed || chunk.holds > 0 || quiet.contains({i, fill->serial}));  // else it should be gone
    }
  }
  for (ChunkIndex i = 0; i < places; ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kFree) {
      KVIST_CHECK(chunk.older == kNoChunk && rest[i] == 0);
      continue;
    }
    KVIST_CHECK(chunk.children == children[i] && chunk.keeps == keeps[i] && chunk.holds == holds[i]);
    KVIST_CHECK(chunk.residents == residents[i]);
    // Nothing leaks: a chunk that nothing needs is either offered for eviction or gone.
    const Fill* fill = fills_.Find(i);
    const bool waits = fill != nullptr && quiet.contains({i, fill->serial});
    if (chunk.state == ChunkState::kGhost || chunk.only_remote() || (chunk.detached && !waits))
      KVIST_CHECK((chunk.needed() ? 1u : 0u) + rest[i] == 1);
    if (rest[i] > 0) KVIST_CHECK(chunk.detached);
    if (chunk.state == ChunkState::kSealed && !chunk.detached && !chunk.busy()) KVIST_CHECK(placement_.PolicyOf(i).Knows(i));
    KVIST_CHECK(chunk.last_child == LastChild::kStays || chunk.residents == 1);
    if (chunk.parent != kNoChunk && chunk.has_slots() && chunks_[chunk.parent].last_child == LastChild::kWritten)
      KVIST_CHECK(chunk.clean);
    if (chunk.last_child == LastChild::kAwaited) awaiting[spaces_[chunk.space].tenant.value] += BytesOf(i);
    above[spaces_[chunk.space].tenant.value] += chunk.last_child != LastChild::kStays;
    if (chunk.clean) {
      KVIST_CHECK(chunk.state == ChunkState::kSealed && chunk.goes());
      KVIST_CHECK(chunk.last_child == LastChild::kStays || chunk.last_child == LastChild::kWritten);
      KVIST_CHECK(chunk.disk == DiskCopy::kThere || spaces_[chunk.space].no_disk);
      clean[spaces_[chunk.space].tenant.value] += BytesOf(i);
    }
    if (placement_.PolicyOf(i).Knows(i)) KVIST_CHECK(chunk.state == ChunkState::kSealed && !chunk.detached);
  }
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    const Space& space = spaces_[SpaceId{s}];
    KVIST_CHECK(space.sealed == sealed[s] && space.bytes == bytes[s] && space.below == below[s]);
  }
  std::vector<Bytes> used(tenants_.size());
  for (uint32_t s = 0; s < spaces_.size(); ++s) used[spaces_[SpaceId{s}].tenant.value] += bytes[s];
  for (uint32_t t = 0; t < tenants_.size(); ++t)
    KVIST_CHECK(tenants_[TenantId{t}].used == used[t] && tenants_[TenantId{t}].ghosts == ghosts[t]);
  for (uint32_t t = 0; t < tenants_.size() && options_.disk.has_value(); ++t)
    tenants_[TenantId{t}].clean->CheckInvariants(clean[t], awaiting[t], above[t]);
  KVIST_CHECK(in_use == chunks_.size() && filling == fills_.size());
  OfTiers reading{};
  for (const ChunkIndex i : reads_.chunks()) reading[static_cast<size_t>(ReadFrom(chunks_[i]))] += BytesOf(i);
  KVIST_CHECK(reading == reads_.bytes());
  KVIST_CHECK(writing == writes_.bytes() && writes == writes_.size());
  KVIST_CHECK(remote_writing == remote_writing_);
  writes_.CheckInvariants();
  for (const auto& [i, recoding] : recodings_) KVIST_CHECK(writes_.Has(i) && chunks_[i].disk == DiskCopy::kMoving);
  remote_names_.CheckInvariants();
  asks_.ForEach(
      [&](AskId, const Ask& ask) { KVIST_CHECK(ask.job != JobId{} || sessions_.Find(ask.lookup.session) != nullptr); });
  fills_.CheckInvariants();
  placement_.CheckInvariants();
  slots_.CheckInvariants();
}

}  // namespace kvist::core
