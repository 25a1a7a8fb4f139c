// Clears of single prompts: what is hidden at once, and what goes with it.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

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
  for (const ChunkKey& key : event.keys) {
    if (of.untold) untold_clears_.ClearedPrompt(event.space, key);
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
    for (const ChunkKey& key : event.keys) remote_names_.ClearBegan({event.space, key});
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
    if (over.has_value()) EndPin(space, *over);
    if (page.next == 0) {
      of->step = PromptJob::Step::kDurable;
      return;
    }
  }
}

}  // namespace kvist::core
