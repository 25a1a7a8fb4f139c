// What the core does for loads, and when a copy starts, is given up, and is quiet.

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

absl::Status CouldNotBeRead() {
  return absl::DataLossError("a chunk of the lease couldn't be read from the tier below: look up again");
}

}  // namespace

OpId Core::Start(Op op, Effects* out) {
  op.reads_left = op.reads.size();
  const SessionId session = op.session;
  const RequestTag tag = op.tag;
  const OpId id = ops_.Insert(std::move(op));
  sessions_.Find(session)->ops.insert(id.Pack());
  Op& started = *ops_.Find(id);
  for (const ChunkIndex chunk : started.reads) waiting_.Add(chunk, id);
  if (started.reads.empty()) {
    BeginCopy(id, &started, out);
  } else {
    out->push_back(CopyWaits{id, session, tag});
  }
  return id;
}

void Core::BeginCopy(OpId id, Op* op, Effects* out) {
  if (sessions_.Find(op->session)->closed) return EndWaiting(id, SessionWasClosed(), out);
  CopyStarted copy{id, op->session, op->tag, op->direction, std::move(op->slots), std::move(op->chunk_of), {}, op->by_layer};
  if (copy.slots.empty()) {  // it holds each of its chunks
    chunks_.Charge(op->chunks.size());
    const Rank rank = sessions_.Find(op->session)->rank;
    for (const ChunkIndex chunk : op->chunks) {
      const ChunkState state = chunks_[chunk].state;
      if (state == ChunkState::kLost) return EndWaiting(id, CouldNotBeRead(), out);
      KVIST_CHECK(state == ChunkState::kReading || state == ChunkState::kSealed);
      copy.slots.push_back(placement_.SlotOf(chunk, rank));
      copy.coming.push_back(state == ChunkState::kReading ? RefOf(chunk) : ChunkRef{});
    }
  }
  if (op->direction == Direction::kLoad) op->era = placement_.LoadBegan();
  out->push_back(std::move(copy));
}

void Core::On(const LoadAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const auto refuse = [&](absl::Status why) { out->push_back(OpEnded{event.session, event.tag, std::move(why)}); };
  if (session->role != Role::kWorker)
    return refuse(absl::FailedPreconditionError("only a worker session can load: a scheduler has no KV memory"));
  const Lease* lease = leases_.Find(event.lease, session->instance);
  if (lease == nullptr)
    return refuse(absl::AbortedError("the lease has ended (released, expired, or not of this instance): look up again"));
  const std::vector<GroupSpec>& groups = spaces_[session->space].spec.groups;
  if (event.group.value >= groups.size()) return refuse(absl::InvalidArgumentError("no such cache group in this space"));
  const ReuseRule& reuse = groups[event.group.value].reuse;
  const uint32_t needed = lease->FirstOf(reuse);
  if (event.count == 0 || event.first < needed || event.first >= lease->chunks ||
      event.count > lease->chunks - event.first) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("chunks [", event.first, ", ", uint64_t{event.first} + event.count,
                                                          ") of a lease over [", needed, ", ", lease->chunks, ") in group ",
                                                          event.group.value)));
  }
  if (session->ops.size() >= Sessions::kOpsPerSession)
    return refuse(absl::ResourceExhaustedError("too many operations in flight in this session"));

  Op op{event.session, event.tag, Direction::kLoad, {}};
  op.copied = event.count;
  op.by_layer = lease->by_layer;
  chunks_.Charge(event.count);
  op.chunks.resize(event.count);
  op.chunk_of.resize(event.count);
  std::iota(op.chunk_of.begin(), op.chunk_of.end(), 0);
  bool whole = true, in_slots = true;
  const std::span<const ChunkIndex> kept = lease->kept_of(event.group);
  if (reuse.chained()) {
    ChunkIndex at = kept.back();
    for (; chunks_[at].position + 1 > event.first + event.count; at = chunks_[at].parent) chunks_.Charge(1);
    for (uint32_t k = event.count; k-- > 0; at = chunks_[at].parent) op.chunks[k] = at;
  } else {
    std::copy_n(kept.begin() + (event.first - needed), event.count, op.chunks.begin());
  }
  for (const ChunkIndex chunk : op.chunks) {
    const ChunkState state = chunks_[chunk].state;
    if (state == ChunkState::kBelow) op.reads.push_back(chunk);
    whole &= chunks_[chunk].whole();
    in_slots &= state == ChunkState::kSealed;
  }
  if (!whole) return refuse(CouldNotBeRead());
  if (in_slots) {
    for (const ChunkIndex chunk : op.chunks) op.slots.push_back(placement_.SlotOf(chunk, session->rank));
    if (reuse.chained()) op.chunks = {op.chunks.back()};
  } else {
    for (const ChunkIndex chunk : op.chunks) counters_.loads_waited += chunks_[chunk].state != ChunkState::kSealed;
  }
  for (const ChunkIndex chunk : op.chunks) {
    ++chunks_[chunk].holds;
    placement_.PolicyOf(chunk).Withdrawn(chunk);
  }
  if (!op.reads.empty()) ReadFor(*lease, op.reads);
  Start(std::move(op), out);
}

void Core::On(const CancelAsked& event, Effects* out) {
  const Op* op = ops_.Find(event.op);
  if (op == nullptr) return;
  if (op->reads_left > 0) return EndWaiting(event.op, absl::CancelledError("the operation was cancelled"), out);
  out->push_back(CopyCancelled{event.op});
}

void Core::On(const CopyFinished& event, Effects* out) {
  if (ops_.Find(event.op) == nullptr) return;  // a late duplicate
  const Op op = ops_.Take(event.op);
  const bool ok = event.status.ok();
  chunks_.Charge(op.chunks.size());
  Session* session = sessions_.Find(op.session);
  const uint32_t dropped = DropCorrupt(op, event.corrupt);
  if (op.allocation) SwapEnded(op, event.op, ok);
  if (op.era.has_value()) placement_.LoadEnded(*op.era);
  uint32_t kept = op.copied;
  for (const ChunkIndex chunk : op.chunks) {
    if (op.direction == Direction::kStore && !op.allocation) {
      if (!FinishShard(chunk, session->rank, ok)) --kept;
    } else {
      --chunks_[chunk].holds;
      UseEnded(chunk);
    }
  }
  if (ok && !op.allocation) (op.direction == Direction::kStore ? counters_.chunks_stored : counters_.chunks_loaded) += kept;
  if (dropped > 0) out->push_back(CorruptionFound{session->space, dropped});
  const uint32_t lost = ok ? op.copied - kept : 0;
  EndOp(op, event.op, {op.session, op.tag, event.status, ok ? kept : 0, op.skipped, op.refused + lost}, out);
}

void Core::EndOp(const Op& op, OpId id, OpEnded ended, Effects* out) {
  Session* session = sessions_.Find(op.session);
  session->ops.erase(id.Pack());
  if (!session->closed) {
    out->push_back(std::move(ended));
  } else if (session->ops.empty()) {
    sessions_.Remove(op.session);
    out->push_back(SessionDrained{op.session});
  }
}

void Core::DropCorrupt(ChunkIndex i, Effects* out) {
  const Chunk& chunk = chunks_[i];
  if (chunk.detached) return;
  ++counters_.chunks_corrupt;
  out->push_back(CorruptionFound{chunk.space, 1, Tier::kDram});
  placement_.PolicyOf(i).Withdrawn(i);
  placement_.Detach(i);
}

// Leases and copies of others may hold them for longer: each load of theirs is checked, too. Chunks below them go unseen with time,
// or when they are stored again.
uint32_t Core::DropCorrupt(const Op& op, std::span<const uint32_t> slots) {
  uint32_t dropped = op.allocation ? static_cast<uint32_t>(slots.size()) : 0;  // nobody else finds those anyway
  if (op.allocation) slots = {};
  const bool listed = op.chunks.size() == op.copied;
  ChunkIndex at = op.chunks.back();
  uint32_t slot = op.copied - 1;  // whose chunk `at` is
  for (auto corrupt = slots.rbegin(); corrupt != slots.rend(); ++corrupt) {
    KVIST_CHECK(op.direction == Direction::kLoad && *corrupt <= slot);
    chunks_.Charge(1 + slot - *corrupt);
    for (; slot > *corrupt; --slot) at = listed ? op.chunks[slot - 1] : chunks_[at].parent;
    if (chunks_[at].detached) continue;  // cleared, or found before
    Detach(at);
    ++dropped;
  }
  counters_.chunks_corrupt += dropped;
  return dropped;
}

}  // namespace kvist::core
