// Clears of one tier: what other tiers have of a chunk stays, so nothing is hidden at once, and each chunk goes from the tier by itself.

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::On(const TierClearAsked& event, Effects* out) {
  const bool of_prompt = !event.keys.empty();
  KVIST_CHECK(event.keys.size() <= kKeysMax && (!of_prompt || event.space.has_value()));
  KVIST_CHECK(!event.space.has_value() || spaces_.Has(*event.space));
  KVIST_CHECK(event.tier != Tier::kSsd || options_.disk.has_value());
  KVIST_CHECK(event.tier != Tier::kRemote || options_.remote.has_value());
  Job job = JobOf(event, of_prompt ? JobKind::kClearPrompt : JobKind::kClear);
  job.tier = event.tier;
  PromptJob& of = prompt_jobs_[event.job];
  of.keys.assign(event.keys.begin(), event.keys.end());
  of.places = chunks_.places();  // those that are made later hold what was stored later
  of.of_tier = true;
  of.since = arrivals_.Watch();
  job.total = of_prompt ? of.keys.size() * spaces_[*event.space].spec.groups.size() : of.places;
  StartJob(std::move(job));
  chunks_.Charge(1 + event.keys.size() / 32);
  if (event.tier == Tier::kDram) return;
  if (of_prompt && event.tier == Tier::kRemote) {
    of.to_forget = of.keys;  // it may have what isn't known here
    for (const ChunkKey& key : of.keys) DoomRemoteWrites(*event.space, key, event.job);
    return HideFromRestarts({event.job, *event.space, {}}, &of, out);
  }
  if (event.tier == Tier::kSsd) of.untold = !all_told_;
  if (of_prompt) {
    for (const ChunkKey& key : event.keys) {
      if (of.untold) untold_clears_.Cleared(*event.space, key);
    }
    return;
  }
  if (event.tier == Tier::kSsd && !event.space.has_value()) untold_clears_.ClearedAll();
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    if (event.space.has_value() && event.space->value != s) continue;
    Space& space = spaces_[SpaceId{s}];
    chunks_.Charge(1);
    if (event.tier == Tier::kSsd) {
      space.cleared = true;  // what the disk tells of late
    } else {
      space.remote_cleared = next_remote_;
      LoseRemotely(SpaceId{s});
    }
  }
  // On disk each chunk is hidden by itself: were all of them at once, a job that is cancelled would leave some that are taken for durable.
  if (event.tier == Tier::kSsd) return;
  ++of.hiding;
  out->push_back(SpaceCleared{event.job, event.space, event.tier});
}

Core::Turn Core::GoOnClearingTier(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  if (of->step == PromptJob::Step::kDurable) {
    if (!of->again.empty()) return Turn::kAside;
    if (of->hiding > 0 || (of->untold && !all_told_)) return Turn::kWaits;
    if (of->untold && spaces_.size() > 0) {
      // What the disk has told since is being freed: hiding nothing more ends after that.
      of->untold = false;
      ++of->hiding;
      out->push_back(ChunksHidden{job->id, job->space.value_or(SpaceId{}), {}});
      return Turn::kWaits;
    }
    job->done = job->total;
    return Turn::kDone;
  }
  const bool of_prompt = !of->keys.empty();
  ChunksHidden hidden{job->id, job->space.value_or(SpaceId{}), {}};
  Turn turn = Turn::kDone;
  while (chunks_.work() < until && turn != Turn::kWaits && (of->above || of->next < job->total)) {
    chunks_.Charge(1);
    ChunkIndex i = kNoChunk;
    if (of->above) {
      i = Find(std::exchange(of->above, {}));
    } else {
      const uint64_t at = job->total - ++of->next;  // the last first: what hangs on it would keep a chunk
      ++job->done;
      i = of_prompt ? FindOfPrompt(*job, *of, at, &hidden) : static_cast<ChunkIndex>(at);
    }
    if (i == kNoChunk) continue;
    const Chunk& chunk = chunks_[i];
    const bool meant = chunk.whole() && !chunk.detached && chunk.epoch == spaces_[chunk.space].epoch &&
                       (!job->space.has_value() || chunk.space == *job->space);
    if (!meant || arrivals_.CameSince(RefOf(i), *job->tier, of->since)) continue;
    if (chunk.space != hidden.space) HideFromRestarts(std::exchange(hidden, {job->id, chunk.space, {}}), of, out);
    turn = *job->tier == Tier::kDram  ? ClearOfDram(i, job, of)
           : *job->tier == Tier::kSsd ? ClearOfDisk(i, job, &hidden)
                                      : ClearOfRemote(i, job, of_prompt);
    if (turn != Turn::kWaits) continue;
    --of->next;
    --job->done;
  }
  HideFromRestarts(std::move(hidden), of, out);
  if (turn == Turn::kWaits) return turn;
  if (of->above || of->next < job->total) return Turn::kMore;
  of->step = PromptJob::Step::kDurable;
  for (uint32_t s = 0; *job->tier == Tier::kSsd && s < spaces_.size(); ++s) {
    if (!job->space.has_value() || job->space->value == s) HideLeft(SpaceId{s}, job->id, of, out);
  }
  return Turn::kMore;
}

void Core::NoteCame(ChunkIndex i, Tier tier) {
  if (!arrivals_.watched()) return;
  chunks_.Charge(1);
  arrivals_.Note(RefOf(i), tier);
}

ChunkIndex Core::FindOfPrompt(const Job& job, const PromptJob& of, uint64_t item, ChunksHidden* hidden) const {
  const Space& space = spaces_[*job.space];
  const size_t groups = space.spec.groups.size(), key = item / groups;
  const GroupId group{static_cast<uint16_t>(item % groups)};
  const ChunkIndex i = chunks_.FindVisible(*job.space, group, space.epoch, of.keys[key]);
  // A chunk that was taken over in DRAM may be there, too, and isn't told yet.
  if (of.untold && (i == kNoChunk || chunks_[i].disk == DiskCopy::kNone)) {
    const uint32_t position = space.spec.groups[group.value].reuse.chained() ? static_cast<uint32_t>(key) : 0;
    hidden->chunks.push_back({group, of.keys[key], position});
  }
  return i;
}

Core::Turn Core::ClearOfDram(ChunkIndex i, Job* job, PromptJob* of) {
  const Chunk& chunk = chunks_[i];
  const bool of_prompt = !of->keys.empty();
  if (chunk.state == ChunkState::kBelow) return Turn::kDone;
  if (chunk.state != ChunkState::kSealed || chunk.busy()) {
    // Of a whole space what others hang on comes to its turn with the last of them.
    job->left += of_prompt || chunk.residents == 0;
    return Turn::kDone;
  }
  ++job->chunks;
  job->bytes += BytesOf(i);
  if (!of_prompt && chunk.parent != kNoChunk) of->above = RefOf(chunk.parent);
  FreeSlotsOf(i);
  return Turn::kDone;
}

Core::Turn Core::ClearOfDisk(ChunkIndex i, Job* job, ChunksHidden* hidden) {
  const Chunk& chunk = chunks_[i];
  const bool reads = chunk.disk == DiskCopy::kThere && chunk.state == ChunkState::kReading;
  // Hidden while it is being written it could be told as written, and would then count as durable.
  if (reads || chunk.disk == DiskCopy::kMoving || chunk.disk == DiskCopy::kWriting) return Turn::kWaits;
  if (chunk.disk == DiskCopy::kNone) return Turn::kDone;
  if (chunk.state == ChunkState::kBelow && chunk.holds > 0) {  // a load waits for it
    ++job->left;
    return Turn::kDone;
  }
  ++job->chunks;
  job->bytes += BytesOf(i);
  hidden->chunks.push_back({chunk.group, chunk.key, chunk.position});
  ForgetCopy(i);
  return Turn::kDone;
}

Core::Turn Core::ClearOfRemote(ChunkIndex i, Job* job, bool of_prompt) {
  const Chunk& chunk = chunks_[i];
  if (chunk.remote == RemoteCopy::kNone) return Turn::kDone;
  if (chunk.only_remote() && chunk.holds > 0) {  // a load waits for it
    ++job->left;
    return Turn::kDone;
  }
  // What is being written of a prompt is doomed; else it has a name that nobody asks for any more, and must not be taken for there.
  if (chunk.remote == RemoteCopy::kWriting && !of_prompt) return Turn::kWaits;
  ++job->chunks;
  job->bytes += BytesOf(i);
  if (chunk.remote == RemoteCopy::kWriting) return Turn::kDone;
  placement_.ForgetRemote(i);
  if (chunk.state == ChunkState::kGhost) placement_.Collect(i);
  return Turn::kDone;
}

}  // namespace kvist::core
