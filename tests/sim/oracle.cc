#include "tests/sim/oracle.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/only.h"

namespace kvist::sim {
namespace {

using core::CopyStarted;
using core::Direction;
using core::Effects;
using core::OpEnded;
using core::Role;

uint64_t Bit(uint32_t shard) { return uint64_t{1} << shard; }

bool Valid(const core::SpaceSpec& spec, Bytes slab_bytes) {
  if (spec.groups.empty()) return false;
  for (const core::GroupSpec& group : spec.groups) {
    if (group.reuse.kind == GroupKind::kWindow && group.reuse.window_chunks == 0) return false;
    if (group.slot_bytes.empty() || group.ranks_per_shard == 0 ||
        group.slot_bytes.size() * group.ranks_per_shard != spec.ranks()) {
      return false;
    }
    for (const Bytes slot : group.slot_bytes) {
      if (slot.value == 0 || slot.value % kPageOfMemory.value != 0 || slot > slab_bytes) return false;
    }
  }
  return true;
}

}  // namespace

Oracle::Oracle(core::CoreOptions options, const pool::SlotAllocator* slots, Memory* memory, Verdict* verdict)
    : options_(options),
      slots_(*slots),
      lease_budget_{static_cast<uint64_t>(static_cast<double>(slots->capacity().value) * options.lease_share)},
      memory_(*memory),
      verdict_(*verdict) {}

// ---- Sessions ---------------------------------------------------------------------------------------------------------------

Oracle::Session* Oracle::FindOpen(SessionId id) {
  const auto found = sessions_.find(id.value);
  return found == sessions_.end() || found->second.closed ? nullptr : &found->second;
}

void Oracle::Judge(const core::SessionOpened& event, const Effects& effects) {
  const InstanceName name{event.space.tenant, event.instance};
  const auto known = spaces_.find(event.space.digest);
  const auto running = instances_.find(name);
  const bool other_space = running != instances_.end() && (known == spaces_.end() || known->second != running->second.space);
  const bool no_rank = event.role == Role::kWorker && event.rank.value >= event.space.ranks();
  if (!Valid(event.space, slots_.slab_bytes()) || other_space || no_rank) {
    ++coverage_.sessions_refused;
    Expect(Only<core::SessionRefused>(effects) != nullptr, kOneAnswer, "a session that can't be served was not refused");
    return;
  }
  const auto* accepted = Only<core::SessionAccepted>(effects);
  if (!Expect(accepted != nullptr && accepted->session == event.session, kOneAnswer,
              "a session that can be served was not accepted"))
    return;
  if (known == spaces_.end()) {
    Expect(specs_.emplace(accepted->space.value, event.space).second, kTenantsApart, "two digests got the same space");
    spaces_.emplace(event.space.digest, accepted->space);
  } else {
    Expect(known->second == accepted->space, kTenantsApart, "one digest got two spaces");
  }
  Instance& instance = instances_[name];
  if (instance.open++ == 0) {
    instance.id = next_instance_++;
    instance.space = accepted->space;
  }
  sessions_[event.session.value] = {name, instance.id, event.role, event.rank, accepted->space, false, {}};
}

void Oracle::Judge(const core::SessionClosed& event, const Effects& effects) {
  Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a session died twice");
    return;
  }
  session->closed = true;
  for (auto& [id, lease] : leases_) {
    if (lease.session != event.session) continue;
    LeaseOver(lease);
    lease.closed = true;
  }
  behind_ = true;
  for (auto allocation = allocations_.begin(); allocation != allocations_.end();) {
    const auto next = std::next(allocation);
    if (allocation->second.session == event.session) EndAllocation(allocation);
    allocation = next;
  }
  if (session->role == Role::kWorker) {
    for (const FillId fill : open_fills_) {
      if (fills_[fill].instance == session->instance) fills_[fill].may_end = true;
    }
  }
  const auto instance = instances_.find(session->name);
  if (--instance->second.open == 0) instances_.erase(instance);

  std::set<uint64_t> cancelled;
  bool drained = false;
  for (const core::Effect& effect : effects) {
    if (const auto* cancel = std::get_if<core::CopyCancelled>(&effect)) {
      cancelled.insert(cancel->op.Pack());
    } else if (const auto* end = std::get_if<core::SessionDrained>(&effect)) {
      drained = end->session == event.session;
    }
  }
  const bool quiet = session->ops.empty();
  Expect(cancelled == session->ops && effects.size() == session->ops.size() + (quiet ? 1 : 0) && drained == quiet,
         kNothingLeaks, "a session's death must cancel each of its copies, and drain it at once only when it has none");
  for (const uint64_t op : session->ops) ops_[op].cancelled = true;
  if (quiet) {
    sessions_.erase(event.session.value);
  } else {
    ++coverage_.deaths_in_flight;
  }
}

// ---- Lookups and leases -----------------------------------------------------------------------------------------------------

const core::GroupSpec& Oracle::GroupOf(SpaceId space, GroupId group) const {
  return specs_.at(space.value).groups[group.value];
}

uint32_t Oracle::FirstNeeded(const core::GroupSpec& group, uint32_t position) {
  switch (group.reuse.kind) {
    case GroupKind::kFull: return 0;
    case GroupKind::kWindow: return position > group.reuse.window_chunks ? position - group.reuse.window_chunks : 0;
    case GroupKind::kState: return position > 0 ? position - 1 : 0;
  }
  return 0;
}

void Oracle::CheckHit(SpaceId space, GroupId group, std::span<const ChunkKey> keys, uint32_t k,
                      std::vector<ShardId>* shards) {
  const core::GroupSpec& spec = GroupOf(space, group);
  for (uint16_t rank = 0; rank < spec.slot_bytes.size(); ++rank) {
    const auto found = newest_.find({{space.value, group.value, keys[k]}, rank});
    const auto where = [&] {
      return absl::StrCat("chunk ", k, " of a hit (space ", space.value, ", group ", group.value, ", key ",
                          absl::Hex(keys[k].word(0)), ")");
    };
    if (found == newest_.end())
      return verdict_.Break(kNothingHalfDone, absl::StrCat(where(), ": shard ", rank, " was never stored completely"));
    const Shard& shard = memory_[found->second];
    if (shard.clears != clears_[space.value])
      return verdict_.Break(kClearedIsGone, absl::StrCat(where(), ": its newest bytes are older than the last clear"));
    if (!slots_.IsLive(shard.slot))
      return verdict_.Break(kNothingHalfDone,
                            absl::StrCat(where(), ": shard ", rank, "'s slot is not live: evicted, or not stored anew yet"));
    if (!memory_.Intact(found->second))
      return verdict_.Break(kNoWrongBytes, absl::StrCat(where(), ": torn or overwritten: ", Describe(found->second, shard)));
    const bool follows =
        spec.reuse.kind != GroupKind::kFull || (k == 0 ? !shard.parent.has_value() : shard.parent == keys[k - 1]);
    if (!follows) return verdict_.Break(kNoWrongBytes, absl::StrCat(where(), ": was stored under another parent"));
    if (shard.clears > 0) ++coverage_.hits_after_clear;
    const ShardId gone = ClearedBefore(space, group, keys.first(k + 1));
    if (found->second < gone)
      return verdict_.Break(kClearedIsGone, absl::StrCat(where(), ": its newest bytes are older than the prompt's clear"));
    if (gone > 0) ++coverage_.hits_after_prompt_clear;
    shards->push_back(found->second);
  }
}

void Oracle::Judge(const core::LookupAsked& event, const Effects& effects) {
  const Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's lookup was answered");
    return;
  }
  const auto* answer = Only<core::LookupAnswered>(effects);
  if (!Expect(answer != nullptr && answer->session == event.session && answer->tag == event.tag &&
                  answer->chunks <= event.keys.size(),
              kOneAnswer, "a lookup gets one answer, and no more chunks than it named")) {
    return;
  }
  ++(answer->chunks == 0 ? coverage_.misses : answer->chunks == event.keys.size() ? coverage_.hits : coverage_.partial_hits);
  Lease lease{session->name,
              session->instance,
              event.session,
              answer->chunks,
              Bytes{},
              now_ + std::min(event.lease, options_.lease_max),
              false,
              false,
              {}};
  const auto groups = static_cast<uint16_t>(specs_.at(session->space.value).groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    auto& chunks = lease.shards.emplace_back(answer->chunks);
    const core::GroupSpec& spec = GroupOf(session->space, GroupId{group});
    const uint32_t first = FirstNeeded(spec, answer->chunks);
    if (first > 0) ++coverage_.hits_without_prefix;
    for (const Bytes slot : spec.slot_bytes) lease.bytes += slot * (answer->chunks - first);
    for (uint32_t k = first; k < answer->chunks && verdict_.kept(); ++k)
      CheckHit(session->space, GroupId{group}, event.keys, k, &chunks[k]);
  }
  if (!verdict_.kept()) return;

  const bool wanted = answer->chunks > 0 && event.lease > absl::ZeroDuration();
  Instance& instance = instances_.at(session->name);
  if (answer->lease) {
    Expect(wanted && instance.leased + lease.bytes <= lease_budget_, kBudgetsHold,
           "a lease is given only when it is wanted and within the instance's budget");
  } else {
    Expect(!wanted || instance.leased + instance.leased_late + lease.bytes > lease_budget_, kBudgetsHold,
           "a lease within the instance's budget was not given");
  }
  if (wanted && !answer->lease) ++coverage_.leases_refused;
  if (!answer->lease) return;
  Expect(leases_ever_.insert(answer->lease.Pack()).second, kStaleRefused, "a lease got the name of an earlier one");
  ++coverage_.leases;
  instance.leased += lease.bytes;
  Protect(lease, true);
  leases_.emplace(answer->lease.Pack(), std::move(lease));
}

void Oracle::Protect(const Lease& lease, bool on) {
  for (const auto& group : lease.shards) {
    for (const auto& chunk : group) {
      for (const ShardId shard : chunk) on ? memory_.Lease(shard) : memory_.Unlease(shard);
    }
  }
}

void Oracle::LeaseOver(Lease& lease) {
  if (lease.expired || lease.closed) return;
  Protect(lease, false);
  behind_ = true;
  const auto instance = instances_.find(lease.name);
  if (instance == instances_.end() || instance->second.id != lease.instance) return;
  instance->second.leased -= lease.bytes;
  instance->second.leased_late += lease.bytes;
}

void Oracle::EndLease(std::map<uint64_t, Lease>::iterator at) {
  LeaseOver(at->second);
  const Lease& lease = at->second;
  const auto instance = instances_.find(lease.name);
  if (instance != instances_.end() && instance->second.id == lease.instance) instance->second.leased_late -= lease.bytes;
  leases_.erase(at);
}

void Oracle::Judge(const core::ReleaseAsked& event, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "a release has no answer");
  const Session* session = FindOpen(event.session);
  const auto lease = leases_.find(event.lease.Pack());
  if (session != nullptr && lease != leases_.end() && lease->second.instance == session->instance && !lease->second.closed)
    EndLease(lease);
}

// ---- Loads and stores -------------------------------------------------------------------------------------------------------

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

// ---- Clearing and the clock -------------------------------------------------------------------------------------------------

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

void Oracle::Judge(const core::Tick& event, const Effects& effects) {
  now_ = std::max(now_, event.now);
  for (auto& [id, lease] : leases_) {
    if (lease.expired || lease.deadline > now_) continue;
    LeaseOver(lease);
    lease.expired = true;
    ++coverage_.leases_expired;
  }
  EndExpiredPins();
  for (const FillId fill : open_fills_) {
    if (fills_[fill].expired || fills_[fill].deadline > now_) continue;
    fills_[fill].expired = true;
    fills_[fill].may_end = true;
    behind_ = true;
    ++coverage_.fills_expired;
  }
  for (const core::Effect& effect : effects) {
    const auto* ended = std::get_if<core::JobEnded>(&effect);
    if (!Expect(ended != nullptr && !jobs_.empty() && ended->job == jobs_.front() && ended->how == core::JobState::kDone,
                kOneAnswer, "jobs end once each, in their order"))
      return;
    jobs_.pop_front();
  }
}

// ---- The core's end ---------------------------------------------------------------------------------------------------------

void Oracle::NewCore() {
  for (auto& [id, lease] : leases_) LeaseOver(lease);
  leases_.clear();
  while (!pins_.empty()) EndPin(pins_.begin());
  ops_.clear();
  ops_ever_.clear();  // nobody remembers them
  while (!allocations_.empty()) EndAllocation(allocations_.begin());
  sessions_.clear();
  instances_.clear();
  prompt_clears_.clear();  // what hung on those is gone with the core
  fills_.clear();
  open_fills_.clear();
  current_fill_.clear();
  jobs_.clear();
  behind_ = false;
}

// ---- Counts -----------------------------------------------------------------------------------------------------------------

void Oracle::Compare(const core::Core& core) {
  const core::CoreStatus status = core.status();
  // What is over is gone when the core says that it has nothing left to do; that it says so at last is seen at the end of a run.
  const bool caught_up = !core.has_work();
  for (auto lease = leases_.begin(); behind_ && caught_up && lease != leases_.end();) {
    const auto next = std::next(lease);
    if (lease->second.expired || lease->second.closed) EndLease(lease);
    lease = next;
  }
  if (caught_up) behind_ = false;
  const auto equal = [&](const char* what, uint64_t in_core, uint64_t expected) {
    Expect(in_core == expected, kNothingLeaks, absl::StrCat(what, ": the core has ", in_core, ", right is ", expected));
  };
  equal("operations", status.ops, ops_.size());
  equal("sessions", status.sessions, sessions_.size());
  equal("instances", status.instances, instances_.size());
  if (caught_up) {
    equal("pins", status.pins, pins_.size());
    equal("private allocations", status.allocations, allocations_.size());
    equal("leases", status.leases, leases_.size());
  }
  for (const auto& [tenant, quota] : options_.quotas) {
    Bytes used{};
    for (const core::CoreStatus::SpaceRow& space : status.spaces) {
      if (space.tenant == tenant) used += space.bytes;
    }
    Expect(used <= quota, kBudgetsHold, absl::StrCat("tenant ", tenant, " has more than its quota"));
  }
  const bool jobs_done = caught_up && !core.vacates();  // for a slab that is being emptied they wait
  if (jobs_done) equal("jobs under way", 0, jobs_.size());

  uint64_t unsure = 0;
  std::erase_if(open_fills_, [&](FillId id) {
    Fill& fill = fills_[id];
    Settle(fill);
    if (fill.ended) return true;
    const bool live = slots_.IsLive(memory_[fill.first].slot);
    if (fill.unsure && caught_up) {
      ++coverage_.sealed;
      fill.ended = true;
      return true;
    }
    unsure += fill.unsure || fill.split ? 1 : 0;
    const bool gone_by_now = fill.running == 0 && caught_up && !fill.split &&
                             (fill.doomed || fill.may_end || (jobs_done && !fill.clears.empty()));
    Expect(!gone_by_now, kNothingLeaks,
           absl::StrCat("a half store that failed, expired or was cleared keeps its slots: ",
                        Describe(fill.first, memory_[fill.first])));
    Expect(live, kNoWrongBytes, absl::StrCat("a half store lost its slots: ", Describe(fill.first, memory_[fill.first])));
    return false;
  });
  if (status.filling > open_fills_.size() || status.filling < open_fills_.size() - unsure)
    equal("half stores", status.filling, open_fills_.size());
}

std::vector<ShardId> Oracle::ShardsOf(OpId op) const {
  const auto found = ops_.find(op.Pack());
  return found == ops_.end() ? std::vector<ShardId>{} : found->second.shards;
}

}  // namespace kvist::sim
