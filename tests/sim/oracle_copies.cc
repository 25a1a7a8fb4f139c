// What the oracle knows of loads, stores and what becomes of half stores.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/only.h"
#include "tests/sim/oracle.h"

namespace kvist::sim {
namespace {

using core::CopyStarted;
using core::Direction;
using core::Effects;
using core::OpEnded;
using core::Role;

uint64_t Bit(uint32_t shard) { return uint64_t{1} << shard; }

}  // namespace

bool Oracle::Refused(const Effects& effects, SessionId session, core::RequestTag tag, absl::StatusCode code) {
  const auto* ended = Only<OpEnded>(effects);
  return ended != nullptr && ended->session == session && ended->tag == tag && ended->status.code() == code &&
         ended->copied == 0;
}

const CopyStarted* Oracle::Started(const Effects& effects, SessionId session, core::RequestTag tag, Direction direction) {
  const auto* copy = Only<CopyStarted>(effects);
  if (copy == nullptr || copy->session != session || copy->tag != tag || copy->direction != direction) return nullptr;
  if (copy->slots.empty() || copy->slots.size() != copy->chunk_of.size()) return nullptr;
  Expect(ops_ever_.insert(copy->op.Pack()).second, kStaleRefused, "an operation got the name of an earlier one");
  return copy;
}

void Oracle::Judge(const core::LoadAsked& event, const Effects& effects) {
  Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's load was answered");
    return;
  }
  if (session->role != Role::kWorker) {
    Expect(Refused(effects, event.session, event.tag, absl::StatusCode::kFailedPrecondition), kOneAnswer,
           "a scheduler's load was not refused");
    return;
  }
  const auto found = leases_.find(event.lease.Pack());
  const bool stale = found == leases_.end() || found->second.instance != session->instance || found->second.closed;
  if (stale || (found->second.expired && Refused(effects, event.session, event.tag, absl::StatusCode::kAborted))) {
    ++coverage_.stale_leases;
    Expect(Refused(effects, event.session, event.tag, absl::StatusCode::kAborted), kStaleRefused,
           "a load on a lease that has ended, or never was its instance's, was not refused");
    return;
  }
  const Lease& lease = found->second;
  if (event.group.value >= lease.shards.size() || event.count == 0 || uint64_t{event.first} + event.count > lease.chunks ||
      event.first < FirstNeeded(GroupOf(session->space, event.group), lease.chunks)) {
    Expect(Refused(effects, event.session, event.tag, absl::StatusCode::kInvalidArgument), kOneAnswer,
           "a load past its lease was not refused");
    return;
  }
  const CopyStarted* copy = Started(effects, event.session, event.tag, Direction::kLoad);
  if (!Expect(copy != nullptr && copy->slots.size() == event.count, kOneAnswer, "a load on a good lease did not start"))
    return;
  const uint32_t ranks_per_shard = GroupOf(session->space, event.group).ranks_per_shard;
  Op op{event.session, event.tag, Direction::kLoad, {}, {}};
  for (uint32_t k = 0; k < event.count && verdict_.kept(); ++k) {
    const ShardId shard = lease.shards[event.group.value][event.first + k][session->rank.value / ranks_per_shard];
    Expect(copy->chunk_of[k] == k && copy->slots[k] == memory_[shard].slot, kNoWrongBytes,
           "a load goes to other slots than those that were leased");
    memory_.BeginLoad(shard);
    op.shards.push_back(shard);
  }
  ++coverage_.loads;
  session->ops.insert(copy->op.Pack());
  ops_.emplace(copy->op.Pack(), std::move(op));
}

void Oracle::Judge(const core::StoreAsked& event, const Effects& effects) {
  Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's store was answered");
    return;
  }
  if (session->role != Role::kWorker) {
    Expect(Refused(effects, event.session, event.tag, absl::StatusCode::kFailedPrecondition), kOneAnswer,
           "a scheduler's store was not refused");
    return;
  }
  const core::SpaceSpec& spec = specs_.at(session->space.value);
  if (event.group.value >= spec.groups.size()) {
    Expect(Refused(effects, event.session, event.tag, absl::StatusCode::kInvalidArgument), kOneAnswer,
           "a store into no group was not refused");
    return;
  }
  if (const auto* ended = Only<OpEnded>(effects)) {
    const bool ghosts = ended->status.code() == absl::StatusCode::kResourceExhausted && ended->refused > 0;
    Expect(ended->session == event.session && ended->tag == event.tag && (ended->status.ok() || ghosts) &&
               ended->copied == 0 && size_t{ended->skipped} + ended->refused == event.keys.size(),
           kOneAnswer, "a store that copies nothing must end at once and account for every chunk");
    coverage_.chunks_refused += ended->refused;
    coverage_.chunks_skipped += ended->skipped;
    if (ghosts) ++coverage_.too_many_ghosts;
    return;
  }
  const CopyStarted* copy = Started(effects, event.session, event.tag, Direction::kStore);
  if (!Expect(copy != nullptr && std::ranges::is_sorted(copy->chunk_of, std::less_equal<>()) &&
                  copy->chunk_of.back() < event.keys.size(),
              kOneAnswer, "a store must start or end")) {
    return;
  }
  Op op{event.session, event.tag, Direction::kStore, {}, {}, static_cast<uint32_t>(event.keys.size())};
  for (size_t i = 0; i < copy->slots.size() && verdict_.kept(); ++i) {
    const uint32_t k = copy->chunk_of[i];
    const auto number = static_cast<uint16_t>(session->rank.value / spec.groups[event.group.value].ranks_per_shard);
    Shard shard{session->space, event.group, event.keys[k], Rank{number}, event.parent, clears_[session->space.value],
                copy->slots[i]};
    if (k > 0) shard.parent = event.keys[k - 1];
    const ShardId id = memory_.BeginStore(shard);
    Expect(memory_[id].pages * kPageOfMemory == spec.groups[event.group.value].slot_bytes[number], kNoWrongBytes,
           "a slot has another size than the shard");
    if (!verdict_.kept()) return;
    op.shards.push_back(id);
    op.fills.push_back(Claim(*session, {session->space.value, event.group.value, event.keys[k]}, id));
  }
  ++coverage_.stores;
  session->ops.insert(copy->op.Pack());
  ops_.emplace(copy->op.Pack(), std::move(op));
}

void Oracle::Settle(Fill& fill) const {
  const bool may = (fill.doomed || fill.may_end || fill.cleared || fill.orphan) && fill.running == 0;
  if (!fill.ended && may && !slots_.IsLive(memory_[fill.first].slot)) fill.ended = true;
}

bool Oracle::HangsOnCleared(const Shard& shard) const {
  if (GroupOf(shard.space, shard.group).reuse.kind != GroupKind::kFull) return false;
  const auto last_clear = prompt_clears_.find(shard.space.value);
  if (last_clear == prompt_clears_.end()) return false;
  ShardId below = 0, oldest = memory_.next();  // of the path up to here
  std::optional<ChunkKey> above = shard.parent;
  for (int steps = 0; above.has_value() && steps < 64; ++steps) {
    const ChunkName name{shard.space.value, shard.group.value, *above};
    const auto current = current_fill_.find(name);
    const Fill* const filling =
        current == current_fill_.end() || fills_[current->second].ended ? nullptr : &fills_[current->second];
    const auto found = newest_.find({name, shard.rank.value});
    // Half a store right above, or no complete shard of this rank here: another rank's half store at most, or nothing.
    if ((below == 0 && filling != nullptr) || found == newest_.end())
      return filling != nullptr && (filling->orphan || filling->cleared);
    const ShardId id = found->second;
    if (below != 0 && below < id && below < last_clear->second) return true;  // it may hang on an earlier one
    oldest = std::min(oldest, id);
    const auto cleared = cleared_chunks_.find(name);
    if (cleared != cleared_chunks_.end() && oldest < cleared->second) return true;
    below = id;
    above = memory_[id].parent;
  }
  return false;
}

Oracle::FillId Oracle::Claim(const Session& session, const ChunkName& chunk, ShardId shard) {
  const uint32_t number = memory_[shard].rank.value;
  const auto current = current_fill_.find(chunk);
  bool split = false;
  if (current != current_fill_.end()) {
    Fill& fill = fills_[current->second];
    Settle(fill);
    const bool joins = fill.instance == session.instance && (fill.claimed & Bit(number)) == 0 && !fill.doomed;
    if (!fill.ended && !fill.cleared && !fill.orphan) {
      Expect(joins, kNoWrongBytes,
             absl::StrCat("a shard that is stored already, or by another instance, is stored again: ",
                          Describe(shard, memory_[shard])));
      fill.claimed |= Bit(number);
      ++fill.running;
      return current->second;
    }
    split = !fill.ended && fill.orphan && joins;
    fill.split |= split;
  }
  const auto id = static_cast<FillId>(fills_.size());
  Fill fill;
  fill.chunk = chunk;
  fill.instance = session.instance;
  fill.all = (uint64_t{1} << GroupOf(session.space, GroupId{std::get<1>(chunk)}).slot_bytes.size()) - 1;
  fill.claimed = Bit(number);
  fill.first = shard;
  fill.running = 1;
  fill.deadline = now_ + options_.fill_timeout;
  fill.orphan = split || HangsOnCleared(memory_[shard]);
  fill.split = split;
  fills_.push_back(fill);
  open_fills_.push_back(id);
  current_fill_[chunk] = id;
  return id;
}

void Oracle::EndShard(FillId id, ShardId shard_id, bool stored) {
  const Shard& shard = memory_[shard_id];
  Fill& fill = fills_[id];
  --fill.running;
  if (!stored) {
    fill.doomed = true;
    ++coverage_.fills_failed;
    return;
  }
  fill.stored |= Bit(shard.rank.value);
  ShardId& newest = newest_[{fill.chunk, shard.rank.value}];
  newest = std::max(newest, shard_id);
  // Whether the last rank sealed it or came too late (a clear, a dead rank, the clock) shows by its slots: they stay or go.
  if (fill.stored != fill.all) return;
  if (slots_.IsLive(shard.slot)) {
    Expect(!fill.doomed, kNothingHalfDone, "a half store with a failed shard was kept");
    fill.unsure = fill.may_end || fill.cleared || fill.orphan;
    if (fill.unsure) return;
    ++coverage_.sealed;
    fill.ended = true;
  }
}

bool Oracle::TellsTheTruth(const Op& op, const core::OpEnded& ended) const {
  uint32_t kept = 0, unsure = 0;
  for (size_t i = 0; i < op.fills.size(); ++i) {
    const Fill& fill = fills_[op.fills[i]];
    const Shard& shard = memory_[op.shards[i]];
    // Cleared meanwhile, or a copy of another rank has failed.
    if (!slots_.IsLive(shard.slot) || shard.clears != clears_.at(shard.space.value) || fill.doomed) continue;
    ++((fill.may_end || fill.orphan) && !fill.ended ? unsure : kept);
  }
  return ended.copied >= kept && ended.copied <= kept + unsure && ended.copied + ended.skipped + ended.refused == op.asked;
}

void Oracle::Judge(const core::CancelAsked& event, const Effects& effects) {
  const auto op = ops_.find(event.op.Pack());
  if (op == ops_.end()) {
    Expect(effects.empty(), kStaleRefused, "an operation that has ended was cancelled");
    return;
  }
  op->second.cancelled = true;
  const auto* cancel = Only<core::CopyCancelled>(effects);
  Expect(cancel != nullptr && cancel->op == event.op, kOneAnswer, "a cancel must reach the copy");
}

void Oracle::Judge(const core::CopyFinished& event, const Effects& effects) {
  const auto found = ops_.find(event.op.Pack());
  if (found == ops_.end()) {
    ++coverage_.late_completions;
    Expect(effects.empty(), kStaleRefused, "a completion that was said again ended another operation");
    return;
  }
  const Op op = std::move(found->second);
  ops_.erase(found);
  const bool ok = event.status.ok();
  if (ok && op.cancelled) ++coverage_.late_ok;
  for (size_t i = 0; i < op.fills.size(); ++i) EndShard(op.fills[i], op.shards[i], ok);
  if (op.allocation != 0) SwapEnded(op, ok);

  Session& session = sessions_.at(op.session.value);
  session.ops.erase(event.op.Pack());
  if (session.closed) {
    if (!session.ops.empty()) {
      Expect(effects.empty(), kNothingLeaks, "a dead session was drained while its copies were running, or answered");
      return;
    }
    const auto* drained = Only<core::SessionDrained>(effects);
    Expect(drained != nullptr && drained->session == op.session, kNothingLeaks,
           "a dead session whose last copy is quiet was not drained");
    sessions_.erase(op.session.value);
    return;
  }
  const auto* ended = Only<OpEnded>(effects);
  Expect(ended != nullptr && ended->session == op.session && ended->tag == op.tag && ended->status == event.status &&
             (ok ? !op.fills.empty() || ended->copied == op.shards.size() : ended->copied == 0),
         kOneAnswer, "an operation whose copy is quiet must end once, as its copy did");
  if (ended != nullptr) {
    if (ok && !op.fills.empty()) {
      Expect(TellsTheTruth(op, *ended), kOneAnswer, "a store's answer must say how many of its chunks are kept");
      if (ended->copied < op.shards.size()) ++coverage_.stores_lost;
    }
    coverage_.chunks_refused += ended->refused;
    coverage_.chunks_skipped += ended->skipped;
  }
}

}  // namespace kvist::sim
