#include "daemon/core/prompt_jobs.h"

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

// Clears, moves and prefetches of single prompts.
namespace kvist::core {

// ---- Clears -----------------------------------------------------------------------------------------------------------------

// In a chained group nothing is found without its first chunk, so that one is enough at once; elsewhere each is found by itself.
uint32_t Core::ClearKeysMax(SpaceId id) const {
  uint32_t by_themselves = 0;
  for (const GroupSpec& group : spaces_[id].spec.groups) by_themselves += group.reuse.chained() ? 0 : 1;
  if (by_themselves == 0) return kKeysMax;
  return std::clamp(options_.event_work / (2 * by_themselves), 1u, kKeysMax);
}

void Core::On(const PromptClearAsked& event, Effects* out) {
  KVIST_CHECK(spaces_.Has(event.space) && !event.keys.empty() && event.keys.size() <= ClearKeysMax(event.space));
  const std::vector<GroupSpec>& groups = spaces_[event.space].spec.groups;
  Job job = JobOf(event, JobKind::kClearPrompt);
  job.total = event.keys.size() + chunks_.places();
  PromptJob& of = prompt_jobs_[event.job];
  of.keys.assign(event.keys.begin(), event.keys.end());
  of.untold = options_.disk.has_value() && !all_told_;
  if (of.untold) {
    for (const ChunkKey& key : event.keys) {
      cleared_keys_.emplace(event.space, key);
      cleared_prompts_.emplace(event.space, key);
    }
  }
  placement_.SpendUntil(0, now_);  // what is hidden now is freed by Ticks
  ChunksHidden hidden{event.job, event.space, {}};
  const auto count = static_cast<uint16_t>(groups.size());
  for (uint16_t g = 0; g < count; ++g) {
    const bool chained = groups[g].reuse.chained();
    for (const ChunkKey& key : chained ? event.keys.first(1) : event.keys) {
      const ChunkIndex i = chunks_.Find(event.space, GroupId{g}, key);
      if (i != kNoChunk) {
        HideOfPrompt(i, of.untold, &job, &hidden);
      } else if (of.untold) {
        hidden.chunks.push_back({GroupId{g}, key, 0});
      }
    }
  }
  of.to_forget = of.keys;  // it may have what isn't known here
  if (options_.remote.has_value()) {
    chunks_.Charge(event.keys.size());
    for (const ChunkKey& key : event.keys) ++being_cleared_[{event.space, key}];
  }
  for (const ChunkKey& key : event.keys) DoomRemoteWrites(event.space, key, event.job);
  StartJob(std::move(job));
  HideFromRestarts(std::move(hidden), &of, out);
}

void Core::HideOfPrompt(ChunkIndex i, bool untold, Job* job, ChunksHidden* hidden) {
  const Chunk& chunk = chunks_[i];
  if (chunk.whole()) {
    ++job->chunks;
    job->bytes += BytesOf(i);
  }
  if (chunk.remote == RemoteCopy::kThere) prompt_jobs_[job->id].to_forget.push_back(chunk.key);
  if (chunk.remote == RemoteCopy::kWriting) DoomRemoteWrites(chunk.space, chunk.key, job->id);
  if (chunk.disk != DiskCopy::kNone || untold) hidden->chunks.push_back({chunk.group, chunk.key, chunk.position});
  Detach(i);
}

void Core::HideFromRestarts(ChunksHidden hidden, PromptJob* of, Effects* out) {
  if (options_.remote.has_value() && !of->to_forget.empty()) {
    ++of->hiding;
    ForgetRemotely({hidden.job, hidden.space, std::move(of->to_forget)}, out);
  }
  of->to_forget.clear();
  if (hidden.chunks.empty()) return;
  ++of->hiding;
  out->push_back(std::move(hidden));
}

void Core::HideLeft(SpaceId space, JobId job, PromptJob* of, Effects* out) {
  if (!std::exchange(spaces_[space].rows_left, false)) return;
  ++of->hiding;
  out->push_back(ChunksHidden{job, space, {}});
}

Core::Turn Core::GoOnClearing(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const SpaceId space = *job->space;
  const std::vector<GroupSpec>& groups = spaces_[space].spec.groups;
  const auto count = static_cast<uint16_t>(groups.size());
  const auto more = [&] { return chunks_.work() < until; };
  ChunksHidden hidden{job->id, space, {}};
  // Nobody finds what hangs on a hidden chunk; what has been stored anew since hangs on others.
  const auto orphan = [this](const Chunk& chunk) { return chunk.parent != kNoChunk && chunks_[chunk.parent].detached; };
  switch (of->step) {
    case PromptJob::Step::kKeys:
      for (; more() && of->next < of->keys.size(); ++of->next, ++job->done) {
        chunks_.Charge(1);
        for (uint16_t g = 0; g < count; ++g) {
          if (!groups[g].reuse.chained()) continue;
          const ChunkIndex i = chunks_.Find(space, GroupId{g}, of->keys[of->next]);
          if (i != kNoChunk && orphan(chunks_[i])) {
            HideOfPrompt(i, of->untold, job, &hidden);
          } else if (i == kNoChunk && of->untold) {
            hidden.chunks.push_back({GroupId{g}, of->keys[of->next], static_cast<uint32_t>(of->next)});
          }
        }
      }
      if (of->next < of->keys.size()) break;
      of->step = PromptJob::Step::kOrphans;
      of->next = 0;
      of->places = chunks_.places();
      break;
    case PromptJob::Step::kOrphans:
      for (; more() && of->next < of->places; ++of->next, ++job->done) {
        const auto at = static_cast<ChunkIndex>(of->next);
        const ChunkIndex i = of->backwards ? of->places - 1 - at : at;
        const Chunk& chunk = chunks_[i];
        chunks_.Charge(1);
        if (chunk.state == ChunkState::kFree || chunk.detached || chunk.space != space || !orphan(chunk)) continue;
        HideOfPrompt(i, of->untold, job, &hidden);
        ++of->found;
      }
      if (of->next < of->places) break;
      if (std::exchange(of->found, 0) == 0) {
        of->step = PromptJob::Step::kPins;
        HideLeft(space, job->id, of, out);
      } else {
        of->next = 0;
        of->places = chunks_.places();
        of->backwards = !of->backwards;
        job->total += of->places;
      }
      break;
    case PromptJob::Step::kPins: EndPinsOfHidden(of, space, until); break;
    default:
      if (!of->again.empty()) return Turn::kAside;
      if (of->hiding > 0 || (of->untold && !all_told_)) return Turn::kWaits;
      if (of->untold) {  // what the disk has told since is being freed: hiding nothing more ends after that
        of->untold = false;
        ++of->hiding;
        out->push_back(std::move(hidden));
        return Turn::kWaits;
      }
      job->done = job->total;
      return Turn::kDone;
  }
  HideFromRestarts(std::move(hidden), of, out);
  return Turn::kMore;
}

void Core::EndPinsOfHidden(PromptJob* of, SpaceId space, uint64_t until) {
  while (chunks_.work() < until) {
    const Pins::Page page = pins_.After(of->pin, 1);
    chunks_.Charge(1);
    std::optional<PinName> over;
    for (const auto& [where, named] : page.pins) {
      const auto& kept = named->second.kept;
      chunks_.Charge(kept.size());
      if (where == space && std::any_of(kept.begin(), kept.end(), [this](ChunkIndex i) { return chunks_[i].detached; }))
        over = named->first;
    }
    of->pin = page.next;
    if (over.has_value()) KeepNoLonger(pins_.Take(space, spaces_[space].tenant, *over).kept);
    if (page.next == 0) {
      of->step = PromptJob::Step::kDurable;
      return;
    }
  }
}

// ---- Moves ------------------------------------------------------------------------------------------------------------------

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

// Whether the chunk, which is in slots, will be on disk, or is being written.
bool Core::WriteForMove(ChunkIndex i, Effects* out) {
  const Chunk& chunk = chunks_[i];
  if (chunk.disk != DiskCopy::kNone) return true;
  if (!options_.disk.has_value() || !writable_.value_or(false) || spaces_[chunk.space].no_disk) return false;
  BeginWrite(i, out);  // it keeps its place in the policy's order
  return true;
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
      of->writes = next_write_;
      of->step = PromptJob::Step::kWritten;
      return Turn::kMore;
    case PromptJob::Step::kWritten:
      if (!writes_.empty() && writes_.begin()->first < of->writes) return Turn::kWaits;
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

Core::Turn Core::GoOnWritingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const size_t items = of->keys.size() * groups;
  const auto find = [&](size_t item) {
    return chunks_.FindVisible(*job->space, GroupId{static_cast<uint16_t>(item % groups)}, space.epoch,
                               of->keys[item / groups]);
  };
  const bool keep = of->move.keep_source;
  if (of->step == PromptJob::Step::kKeys) {
    if (of->items.empty()) of->items.resize(items);
    for (; chunks_.work() < until && of->next < items; ++of->next, ++job->done) {
      const ChunkIndex i = find(of->next);
      PromptJob::Item& item = of->items[of->next];
      if (i == kNoChunk) continue;
      const Chunk& chunk = chunks_[i];
      item = PromptJob::Item::kLeft;
      const bool forgets = WillForget(*job->space, chunk.key);
      if (IsBeingCleared(*job->space, chunk.key) || (forgets && !reachable_)) continue;
      if (forgets || !KnowsForMove(*job, of, of->next / groups, out)) return Turn::kWaits;
      BelieveForMove(*of, of->next / groups, i);
      const bool there = chunk.remote != RemoteCopy::kNone;
      if (there && (keep || !chunk.has_slots())) {
        item = PromptJob::Item::kAlready;
        continue;
      }
      if (chunk.state != ChunkState::kSealed || (!there && !reachable_)) continue;
      if (!there && (remote_writing_ >= options_.remote->writing || placement_.vacating().IsCopied(i))) return Turn::kWaits;
      item = PromptJob::Item::kToMove;
      if (!there) BeginRemoteWrite(i, out);
    }
    if (of->next < items) return Turn::kMore;
    of->step = PromptJob::Step::kSettle;
  }
  for (; chunks_.work() < until && of->next > 0; --of->next, ++job->done) {
    const PromptJob::Item item = of->items[of->next - 1];
    chunks_.Charge(1);
    const ChunkIndex i = item == PromptJob::Item::kToMove ? find(of->next - 1) : kNoChunk;
    if (i != kNoChunk && chunks_[i].remote == RemoteCopy::kWriting) return Turn::kWaits;
    job->already += item == PromptJob::Item::kAlready;
    job->left += item == PromptJob::Item::kLeft;
    if (item != PromptJob::Item::kToMove) continue;
    const bool there = i != kNoChunk && MayFreeFor(*of, i);
    const bool moved = there && (keep || (chunks_[i].state == ChunkState::kSealed && !chunks_[i].busy()));
    ++(moved ? job->chunks : job->left);
    if (!moved) continue;
    job->bytes += BytesOf(i);
    if (!keep) FreeSlotsOf(i);
  }
  return of->next > 0 ? Turn::kMore : Turn::kDone;
}

// ---- Encoding another way ---------------------------------------------------------------------------------------------------

void Core::On(const RecodeAsked& event, Effects*) {
  KVIST_CHECK(spaces_.Has(event.space) && event.keys.size() <= kKeysMax && options_.remote.has_value());
  Job job = JobOf(event, event.kind);
  job.total = event.keys.size() * spaces_[event.space].spec.groups.size();
  chunks_.Charge(event.keys.size() / 32);
  PromptJob& of = prompt_jobs_[event.job];
  of.keys.assign(event.keys.begin(), event.keys.end());
  of.method = event.method;
  StartJob(std::move(job));
}

Core::Turn Core::GoOnRecoding(Job* job, PromptJob* of, Effects* out) {
  if (!std::exchange(of->recoding, true)) out->push_back(RecodeStarted{job->id, *job->space, of->keys, of->method});
  return of->recoded ? Turn::kDone : Turn::kWaits;
}

void Core::On(const Recoded& event, Effects*) {
  const auto of = prompt_jobs_.find(event.job);
  if (of == prompt_jobs_.end()) return;  // it was cancelled
  Job* job = jobs_.Running(event.job);
  job->done = event.ended ? job->total : event.done;
  job->chunks = event.chunks;
  job->already = event.already;
  job->left = event.left;
  job->bytes = event.bytes;
  job->bytes_after = event.bytes_after;
  job->relative_error = event.relative_error;
  job->trouble = std::string(event.status.message());
  of->second.recoded = event.ended;
}

// kDone: it is being read, or can't be.
Core::Turn Core::ReadForMove(ChunkIndex i, Effects* out) {
  if (chunks_[i].state != ChunkState::kBelow || chunks_[i].detached) return Turn::kDone;
  const Tenant& tenant = tenants_[spaces_[chunks_[i].space].tenant];
  // Engines come first, and so do their stores (BeginReads).
  const bool stores_first = tenant.writing > Bytes{} && AtHand(tenant) < ReserveOf(tenant) / 2;
  const Tier from = ReadFrom(chunks_[i]);
  const Bytes most = from == Tier::kSsd ? options_.disk->writing : options_.remote->writing;
  const bool enough = reading_bytes_[static_cast<size_t>(from)] >= most;
  if (WaitsForSlots() || stores_first || enough) return Turn::kWaits;
  if (BeginRead(i, /*by_layer=*/false, MayMakeRoomFrom(), out)) return Turn::kDone;
  if (placement_.spent()) return Turn::kMore;
  if (tenant.writing > Bytes{} || !reading_.empty() || placement_.SlabComesSoon())
    return Turn::kWaits;  // there will be a slot for it
  if (BeginRead(i, /*by_layer=*/false, Tenants::Victims::kAny, out)) return Turn::kDone;
  if (placement_.SlabComesSoon()) return Turn::kWaits;
  return placement_.spent() ? Turn::kMore : Turn::kDone;
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

// ---- Their turns ------------------------------------------------------------------------------------------------------------

bool Core::MayBegin(const Job& job, PromptJob* of) {
  const bool recode = job.kind == JobKind::kCompress || job.kind == JobKind::kDecompress;
  const bool move = job.kind == JobKind::kMove || job.kind == JobKind::kPrefetch;
  const auto uses = [&](Tier tier) { return move && (of->move.from == tier || of->move.to == tier); };
  if (of->begun) return true;
  if (uses(Tier::kSsd) && options_.disk.has_value() && !all_told_) return false;
  if (job.resumed && (recode || uses(Tier::kRemote)) && !reachable_) {
    if (!remote_awaited_until_.has_value()) remote_awaited_until_ = now_ + options_.remote->awaited;
    if (AwaitsRemote()) return false;
  }
  return of->begun = true;
}

void Core::GoOnWithPrompt(Job* job, uint64_t until, Effects* out) {
  PromptJob& of = prompt_jobs_.at(job->id);
  const bool recode = job->kind == JobKind::kCompress || job->kind == JobKind::kDecompress;
  job_waits_ = !MayBegin(*job, &of);
  if (job_waits_) return;
  const Turn turn = recode                               ? GoOnRecoding(job, &of, out)
                    : job->tier.has_value()              ? GoOnClearingTier(job, &of, until, out)
                    : job->kind == JobKind::kClearPrompt ? GoOnClearing(job, &of, until, out)
                    : of.move.from == Tier::kRemote      ? GoOnReadingRemote(job, &of, until, out)
                    : of.move.to == Tier::kSsd           ? GoOnWriting(job, &of, until, out)
                    : of.move.to == Tier::kDram          ? GoOnReading(job, &of, until, out)
                    : of.move.from == Tier::kSsd         ? GoOnSending(job, &of, until, out)
                                                         : GoOnWritingRemote(job, &of, until, out);
  job_waits_ = turn == Turn::kWaits;
  job->aside = turn == Turn::kAside;
  if (turn != Turn::kDone) return;
  const Job* ended = jobs_.End(job->id, job->lost == 0 ? JobState::kDone : JobState::kCancelled);
  ForgetPromptJob(ended->id);
  out->push_back(JobEnded{ended->id, ended->state, ended->chunks});
}

void Core::ForgetPromptJob(JobId id) {
  job_waits_ = false;
  const auto job = prompt_jobs_.find(id);
  if (job == prompt_jobs_.end()) return;
  for (const PromptJob::Kept& kept : job->second.kept) let_go_.push_back(kept.chunk);
  const Job* ended = jobs_.Find(id);
  if (!job->second.again.empty()) unforgotten_.emplace_back(*ended->space, std::move(job->second.again));
  if (ended->kind == JobKind::kClearPrompt && !ended->tier.has_value() && options_.remote.has_value()) {
    chunks_.Charge(job->second.keys.size());
    for (const ChunkKey& key : job->second.keys) {
      const auto clears = being_cleared_.find({*ended->space, key});
      if (--clears->second == 0) being_cleared_.erase(clears);
    }
  }
  tier_clears_ -= job->second.of_tier ? 1 : 0;
  prompt_jobs_.erase(job);
}

}  // namespace kvist::core
