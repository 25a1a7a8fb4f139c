#include "tests/sim/oracle.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/only.h"

namespace kvist::sim {
namespace {

using core::Effects;
using core::Role;

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

// ---- The clock --------------------------------------------------------------------------------------------------------------

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
