// What the oracle knows of clears, and of other jobs on prompts.

#include <algorithm>
#include <iterator>

#include "tests/sim/only.h"
#include "tests/sim/oracle.h"

namespace kvist::sim {

using core::Effects;

void Oracle::Judge(const core::ClearAsked& event, const Effects& effects) {
  const auto* ended = Only<core::JobEnded>(effects);
  if (event.space.has_value() &&
      !specs_.contains(event.space->value)) {  // the core may have met a space whose session it refused
    if (ended == nullptr) jobs_.push_back(event.job);
    return;
  }
  Expect(effects.empty(), kOneAnswer, "a clear ends in slices, by the clock");
  jobs_.push_back(event.job);
  ++coverage_.clears;
  for (const auto& [space, spec] : specs_) {
    if (event.space.has_value() && event.space->value != space) continue;
    ++clears_[space];
    for (auto pin = pins_.begin(); pin != pins_.end();) {
      const auto next = std::next(pin);
      if (pin->first.first == space) {
        ++coverage_.pins_cleared;
        EndPin(pin);
      }
      pin = next;
    }
    for (const FillId fill : open_fills_) {
      if (std::get<0>(fills_[fill].chunk) != space) continue;
      fills_[fill].cleared = true;
      fills_[fill].clears.insert(event.job);
    }
  }
}

ShardId Oracle::ClearedBefore(SpaceId space, GroupId group, std::span<const ChunkKey> prefix) const {
  const auto chunk = cleared_chunks_.find({space.value, group.value, prefix.back()});
  const auto path = cleared_prefixes_.find({space.value, group.value, {prefix.begin(), prefix.end()}});
  return std::max(chunk == cleared_chunks_.end() ? 0 : chunk->second, path == cleared_prefixes_.end() ? 0 : path->second);
}

bool Oracle::IsStoring(SpaceId space) const {
  return std::any_of(open_fills_.begin(), open_fills_.end(), [&](FillId id) {
    const Fill& fill = fills_[id];
    const bool over = fill.ended || (fill.split && fill.running == 0);  // of which the other half may be sealed
    return !over && std::get<0>(fill.chunk) == space.value;
  });
}

void Oracle::Judge(const core::PromptClearAsked& event, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "a clear of a prompt ends in slices, by the clock");
  jobs_.push_back(event.job);
  ++coverage_.prompts_cleared;
  if (!specs_.contains(event.space.value)) return;  // the core may have met a space whose session it refused
  prompt_clears_[event.space.value] = memory_.next();
  const std::vector<core::GroupSpec>& groups = specs_.at(event.space.value).groups;
  for (uint16_t g = 0; g < groups.size(); ++g) {
    const bool chained = groups[g].reuse.kind == GroupKind::kFull;
    for (size_t k = 0; k < event.keys.size(); ++k) {
      const std::span<const ChunkKey> prefix = event.keys.first(k + 1);
      if (chained) cleared_prefixes_[{event.space.value, g, {prefix.begin(), prefix.end()}}] = memory_.next();
      if (!chained || k == 0) cleared_chunks_[{event.space.value, g, prefix.back()}] = memory_.next();
    }
  }
  // A pin of what begins with a chunk that is gone, or has one, is over.
  for (auto at = pins_.begin(); at != pins_.end();) {
    const auto pin = at++;
    if (pin->first.first != event.space.value) continue;
    const bool over = std::any_of(pin->second.shards.begin(), pin->second.shards.end(), [&](ShardId id) {
      const Shard& shard = memory_[id];
      const auto gone = cleared_chunks_.find({shard.space.value, shard.group.value, shard.key});
      return gone != cleared_chunks_.end() && id < gone->second;
    });
    if (!over) continue;
    ++coverage_.pins_cleared;
    EndPin(pin);
  }
}

void Oracle::Judge(const core::MoveAsked& event, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "a move ends in slices, by the clock");
  jobs_.push_back(event.job);
  ++coverage_.moves;
}

void Oracle::Judge(const core::JobCancelAsked& event, const Effects& effects) {
  const auto job = std::find(jobs_.begin(), jobs_.end(), event.job);
  if (job == jobs_.end()) {
    Expect(effects.empty(), kOneAnswer, "a job ended that does not run");
    return;
  }
  const auto* ended = Only<core::JobEnded>(effects);
  Expect(ended != nullptr && ended->job == event.job && ended->how == core::JobState::kCancelled, kOneAnswer,
         "a running job must end when it is cancelled");
  jobs_.erase(job);
  for (const FillId fill : open_fills_) fills_[fill].clears.erase(event.job);
  ++coverage_.clears_cancelled;
}

}  // namespace kvist::sim
