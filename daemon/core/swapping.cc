// What the core does for private allocations: slots without keys, and copies out of an engine's pages and back.

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"

namespace kvist::core {

void Core::On(const AllocateAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const auto refuse = [&](absl::Status why) { out->push_back(Answered{event.session, event.tag, std::move(why), 0, {}}); };
  const Space& space = spaces_[session->space];
  if (event.group.value >= space.spec.groups.size())
    return refuse(absl::InvalidArgumentError("no such cache group in this space"));
  if (event.chunks == 0 || event.chunks > kKeysMax) {
    return refuse(
        absl::InvalidArgumentError(absl::StrCat("an allocation has 1 to ", kKeysMax, " chunks, not ", event.chunks)));
  }
  const GroupSpec& group = space.spec.groups[event.group.value];
  if (const uint64_t work = uint64_t{event.chunks} * (1 + group.shards()); work > options_.event_work) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("an allocation of ", event.chunks, " chunks of ", group.shards(),
                                                          " shards is more than is done at once: ask for ",
                                                          options_.event_work / (1 + group.shards()), " chunks at a time")));
  }
  const Bytes bytes = space.chunk_bytes(event.group) * event.chunks;
  if (allocations_.used(session->instance) + bytes > allocations_.budget()) {
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat(bytes.value, " bytes; the instance has ", allocations_.used(session->instance).value, " of the ",
                     allocations_.budget().value, " that its private allocations may take")));
  }
  // Names of instances are the client's: the tenant's bound is what keeps others' part of the pool theirs.
  const Tenant& tenant = tenants_[space.tenant];
  const Bytes tenant_most = ShareOf(tenants_.EntitledTo(space.tenant), options_.private_share);
  if (tenant.private_bytes + bytes > tenant_most) {
    return refuse(
        absl::ResourceExhaustedError(absl::StrCat(bytes.value, " bytes; the tenant has ", tenant.private_bytes.value,
                                                  " of the ", tenant_most.value, " that its private allocations may take")));
  }
  Allocation allocation{session->instance,
                        event.session,
                        space.tenant,
                        event.group,
                        bytes,
                        {},
                        Swaps(group.shards(), event.chunks, group.layers)};
  for (uint32_t k = 0; k < event.chunks; ++k) {
    const ChunkIndex i = placement_.AddPrivate(session->space, event.group);
    if ((k > 0 && placement_.spent()) ||
        !placement_.Reserve(i, sessions_.NearOf(session->instance), Tenants::Victims::kAny, event.chunks - k)) {
      placement_.Collect(i);
      KeepNoLonger(allocation.chunks);
      return refuse(absl::ResourceExhaustedError(
          "the pool has no room for the allocation now: go on without, ask for less, or again"));
    }
    chunks_[i].state = ChunkState::kPrivate;
    ++chunks_[i].keeps;
    allocation.chunks.push_back(i);
  }
  const std::vector<ChunkIndex> reserved = allocation.chunks;
  const AllocationId id = allocations_.Insert(std::move(allocation));
  if (!id) {
    KeepNoLonger(reserved);
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat("a session has at most ", kAllocationsPerSession, " private allocations: free some")));
  }
  private_bytes_ += bytes;
  tenants_[space.tenant].private_bytes += bytes;
  out->push_back(Answered{event.session, event.tag, absl::OkStatus(), event.chunks, id});
}

void Core::On(const FreeAsked& event, Effects*) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  if (allocations_.Find(event.allocation, session->instance) != nullptr) EndAllocation(event.allocation);
}

void Core::EndAllocation(AllocationId id) {
  Allocation& allocation = allocations_[id];
  KeepNoLonger(std::exchange(allocation.chunks, {}));  // those that a copy holds go with it
  if (!allocation.swaps.quiet()) return allocations_.Retire(id);
  CountNoLonger(id);
}

void Core::CountNoLonger(AllocationId id) {
  const Allocation allocation = allocations_.Take(id);
  private_bytes_ -= allocation.bytes;
  tenants_[allocation.tenant].private_bytes -= allocation.bytes;
}

void Core::SwapEnded(const Op& op, OpId id, bool ok) {
  Swaps& swaps = allocations_[op.allocation].swaps;  // it counts as long as a copy of it runs
  swaps.End(id, ok);
  if (swaps.quiet() && allocations_.Retired(op.allocation)) CountNoLonger(op.allocation);
}

void Core::On(const SwapAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const auto end = [&](absl::Status status, uint32_t skipped = 0) {
    out->push_back(OpEnded{event.session, event.tag, std::move(status), 0, skipped, 0});
  };
  if (session->role != Role::kWorker)
    return end(absl::FailedPreconditionError("only a worker session can swap: a scheduler has no KV memory"));
  Allocation* allocation = allocations_.Find(event.allocation, session->instance);
  if (allocation == nullptr)
    return end(absl::AbortedError("the private allocation has ended (freed, its session closed, or not of this instance)"));
  if (event.group != allocation->group) {
    return end(absl::InvalidArgumentError(
        absl::StrCat("the allocation is of cache group ", allocation->group.value, ", not ", event.group.value)));
  }
  const auto chunks = static_cast<uint32_t>(allocation->chunks.size());
  if (event.count == 0 || event.first >= chunks || event.count > chunks - event.first) {
    return end(absl::InvalidArgumentError(
        absl::StrCat("chunks [", event.first, ", ", uint64_t{event.first} + event.count, ") of an allocation of ", chunks)));
  }
  if (event.layers == 0 || event.first_layer >= allocation->swaps.layers() ||
      event.layers > allocation->swaps.layers() - event.first_layer) {
    return end(absl::InvalidArgumentError(
        absl::StrCat("layers [", event.first_layer, ", +", event.layers, ") of ", allocation->swaps.layers())));
  }
  if (session->ops.size() >= Sessions::kOpsPerSession)
    return end(absl::ResourceExhaustedError("too many operations in flight in this session"));
  const GroupSpec& group = spaces_[session->space].spec.groups[event.group.value];
  const bool out_of_engine = event.direction == Direction::kStore;
  // Ranks with equal bytes: the first of them takes them out for all.
  if (out_of_engine && session->rank.value % group.ranks_per_shard != 0) return end(absl::OkStatus(), event.count);
  const SwapRange range{
      group.ShardOf(session->rank), event.first, event.count, event.first_layer, event.layers, out_of_engine};
  if (allocation->swaps.Busy(range))
    return end(absl::FailedPreconditionError("another copy of these chunks and layers is under way: wait for it first"));
  if (!out_of_engine && !allocation->swaps.Written(range))
    return end(absl::FailedPreconditionError(
        "these chunks and layers were never taken out completely: there is nothing to bring back"));

  Op op{event.session, event.tag, event.direction, {}};
  op.copied = event.count;
  op.allocation = event.allocation;
  chunks_.Charge(event.count);
  for (uint32_t k = event.first; k < event.first + event.count; ++k) {
    const ChunkIndex chunk = allocation->chunks[k];
    ++chunks_[chunk].holds;
    op.chunks.push_back(chunk);
    op.slots.push_back(placement_.SlotOf(chunk, session->rank));
  }
  op.chunk_of.resize(event.count);
  std::iota(op.chunk_of.begin(), op.chunk_of.end(), 0);
  allocation->swaps.Begin(Start(std::move(op), out), range);
}

}  // namespace kvist::core
