// Moves of single prompts between slots and the disk; a prefetch is one, too. Those from and to a store beyond the node: remote_moves.cc.

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::On(const MoveAsked& event, Effects*) {
  KVIST_CHECK(spaces_.Has(event.space) && event.keys.size() <= kKeysMax && event.from != event.to);
  Job job = JobOf(event, event.kind);
  const size_t items = event.keys.size() * spaces_[event.space].spec.groups.size();
  job.total = 2 * items;
  PromptJob& of = prompt_jobs_[event.job];
  of.keys.assign(event.keys.begin(), event.keys.end());
  of.move = event;
  of.move.keys = {};
  StartJob(std::move(job));
}

void Core::FreeSlotsOf(ChunkIndex i) {
  placement_.PolicyOf(i).Withdrawn(i);
  placement_.Unreserve(i);
  if (chunks_[i].state == ChunkState::kGhost || chunks_[i].only_remote()) placement_.Collect(i);
}

bool Core::WriteForMove(ChunkIndex i, Effects* out) {
  const Chunk& chunk = chunks_[i];
  if (chunk.disk != DiskCopy::kNone) return true;
  if (!options_.disk.has_value() || !writable_.value_or(false) || spaces_[chunk.space].no_disk) return false;
  BeginWrite(i, out);  // it keeps its place in the policy's order
  return true;
}

Core::Turn Core::ReadForMove(ChunkIndex i, Effects* out) {
  if (chunks_[i].state != ChunkState::kBelow || chunks_[i].detached) return Turn::kDone;
  const Tenant& tenant = tenants_[spaces_[chunks_[i].space].tenant];
  // Engines come first, and so do their stores (BeginReads).
  const bool stores_first = tenant.writing > Bytes{} && AtHand(tenant) < ReserveOf(tenant) / 2;
  const Tier from = ReadFrom(chunks_[i]);
  const Bytes most = from == Tier::kSsd ? options_.disk->writing : options_.remote->writing;
  const bool enough = reads_.bytes(from) >= most;
  if (WaitsForSlots() || stores_first || enough) return Turn::kWaits;
  if (BeginRead(i, /*by_layer=*/false, MayMakeRoomFrom(), out)) return Turn::kDone;
  if (placement_.spent()) return Turn::kMore;
  if (tenant.writing > Bytes{} || !reads_.empty() || placement_.SlabComesSoon())
    return Turn::kWaits;  // there will be a slot for it
  if (BeginRead(i, /*by_layer=*/false, Tenants::Victims::kAny, out)) return Turn::kDone;
  if (placement_.SlabComesSoon()) return Turn::kWaits;
  return placement_.spent() ? Turn::kMore : Turn::kDone;
}

Core::Turn Core::GoOnWriting(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const size_t items = of->keys.size() * groups;
  const auto find = [&](size_t item) {
    const GroupId group{static_cast<uint16_t>(item % groups)};
    return chunks_.FindVisible(*job->space, group, space.epoch, of->keys[item / groups]);
  };
  const bool keep = of->move.keep_source;
  switch (of->step) {
    case PromptJob::Step::kKeys:
      if (of->items.empty()) of->items.resize(items);
      for (; chunks_.work() < until && of->next < items; ++of->next, ++job->done) {
        const ChunkIndex i = find(of->next);
        PromptJob::Item& item = of->items[of->next];
        if (i == kNoChunk) continue;
        const Chunk& chunk = chunks_[i];
        if (chunk.state != ChunkState::kSealed) {  // being read, it is on disk, too
          item = keep || chunk.state == ChunkState::kBelow ? PromptJob::Item::kAlready : PromptJob::Item::kLeft;
          continue;
        }
        if (keep && chunk.on_disk()) {
          item = PromptJob::Item::kAlready;
          continue;
        }
        // One that isn't ready yet will be.
        const bool waits = options_.disk.has_value() && (!writable_.has_value() || (*writable_ && !MayWrite()));
        if (chunk.disk == DiskCopy::kNone && ((waits && !space.no_disk) || placement_.vacating().IsCopied(i)))
          return Turn::kWaits;
        item = WriteForMove(i, out) ? PromptJob::Item::kToMove : PromptJob::Item::kLeft;
      }
      if (of->next < items) return Turn::kMore;
      of->writes = writes_.next();
      of->step = PromptJob::Step::kWritten;
      return Turn::kMore;
    case PromptJob::Step::kWritten:
      if (!writes_.EndedBelow(of->writes)) return Turn::kWaits;
      of->step = PromptJob::Step::kSettle;
      return Turn::kMore;
    default: break;
  }
  for (; chunks_.work() < until && of->next > 0; --of->next, ++job->done) {
    const PromptJob::Item item = of->items[of->next - 1];
    chunks_.Charge(1);
    job->already += item == PromptJob::Item::kAlready;
    job->left += item == PromptJob::Item::kLeft;
    if (item != PromptJob::Item::kToMove) continue;
    const ChunkIndex i = find(of->next - 1);
    bool moved = i != kNoChunk && chunks_[i].on_disk();
    if (moved && !keep && chunks_[i].state != ChunkState::kBelow) {
      const Chunk& chunk = chunks_[i];
      moved = chunk.state == ChunkState::kSealed && chunk.disk == DiskCopy::kThere && !chunk.busy();
      if (moved) FreeSlotsOf(i);
    }
    ++(moved ? job->chunks : job->left);
    if (moved) job->bytes += BytesOf(i);
  }
  return of->next > 0 ? Turn::kMore : Turn::kDone;
}

Core::Turn Core::GoOnReading(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const size_t items = of->keys.size() * groups;
  const Bytes most = ShareOf(std::min(tenants_[space.tenant].quota, slots_.capacity()), options_.lease_share);
  const bool keep = of->move.keep_source;
  switch (of->step) {
    case PromptJob::Step::kKeys:
      for (; chunks_.work() < until && of->next < items; ++of->next, ++job->done) {
        const GroupId group{static_cast<uint16_t>(of->next % groups)};
        const ChunkIndex i = chunks_.FindVisible(*job->space, group, space.epoch, of->keys[of->next / groups]);
        if (i == kNoChunk) continue;
        const Chunk& chunk = chunks_[i];
        const bool moves = chunk.state != ChunkState::kSealed || (!keep && chunk.on_disk());
        const bool fits = of->kept_bytes + BytesOf(i) <= most;
        if (!moves) ++job->already;
        if (moves && !fits) ++job->left;
        if (!fits) continue;
        of->kept_bytes += BytesOf(i);
        of->kept.push_back({i, moves});
        Keep({&i, 1});
      }
      if (of->next < items) return Turn::kMore;
      of->step = PromptJob::Step::kRead;
      of->next = of->kept.size();
      return Turn::kMore;
    case PromptJob::Step::kRead:
      for (; chunks_.work() < until && of->next > 0; --of->next) {
        chunks_.Charge(1);
        const Turn turn = ReadForMove(of->kept[of->next - 1].chunk, out);
        if (turn == Turn::kWaits && Starves()) break;
        if (turn != Turn::kDone) return turn;
      }
      if (of->next > 0 && !Starves()) return Turn::kMore;
      of->next = 0;
      of->step = PromptJob::Step::kSettle;
      return Turn::kMore;
    default: break;
  }
  for (; chunks_.work() < until && !of->kept.empty(); of->kept.pop_back(), ++job->done) {
    const ChunkIndex i = of->kept.back().chunk;
    const bool moves = of->kept.back().moves;
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kReading) return Turn::kWaits;
    const bool ours = chunk.state == ChunkState::kSealed && !chunk.detached;
    const bool freed = keep || !chunk.on_disk() || chunk.disk == DiskCopy::kThere;  // else it is being written again
    if (moves) ++(ours && freed ? job->chunks : job->left);
    if (moves && ours && freed) job->bytes += BytesOf(i);
    if (moves && ours && !keep && chunk.disk == DiskCopy::kThere) ForgetCopy(i);
    KeepNoLonger({&i, 1});
  }
  if (!of->kept.empty()) return Turn::kMore;
  job->done = job->total;
  return Turn::kDone;
}

}  // namespace kvist::core
