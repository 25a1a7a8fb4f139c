// What the oracle knows of pins, hints and private allocations.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/only.h"
#include "tests/sim/oracle.h"

namespace kvist::sim {

using core::CopyStarted;
using core::Direction;
using core::Effects;

// ---- Pins -------------------------------------------------------------------------------------------------------------------

Bytes Oracle::Needed(SpaceId space, std::span<const ChunkKey> keys, uint32_t position, std::vector<ShardId>* shards) {
  Bytes bytes{};
  const auto groups = static_cast<uint16_t>(specs_.at(space.value).groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    const core::GroupSpec& spec = GroupOf(space, GroupId{group});
    for (uint32_t k = FirstNeeded(spec, position); k < position && verdict_.kept(); ++k) {
      CheckHit(space, GroupId{group}, keys, k, shards);
      for (const Bytes slot : spec.slot_bytes) bytes += slot;
    }
  }
  return bytes;
}

Bytes Oracle::EntitledTo(const std::string& tenant) const {
  Bytes promised{};
  for (const auto& [name, quota] : options_.quotas) promised += quota;
  const auto quota = options_.quotas.find(tenant);
  if (quota != options_.quotas.end()) return std::min(quota->second, slots_.capacity());
  return promised <= slots_.capacity() ? slots_.capacity() - promised : slots_.capacity();
}

void Oracle::EndPin(std::map<PinPlace, Pin>::iterator at) {
  for (const ShardId shard : at->second.shards) memory_.Unlease(shard);
  pinned_[specs_.at(at->first.first).tenant] -= at->second.bytes;
  pins_.erase(at);
}

void Oracle::Judge(const core::PinAsked& event, const Effects& effects) {
  const Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's pin was answered");
    return;
  }
  const auto* answer = Only<core::Answered>(effects);
  if (!Expect(answer != nullptr && answer->session == event.session && answer->tag == event.tag && !answer->allocation,
              kOneAnswer, "a pin gets one answer"))
    return;
  JudgePin({session->space, session->name.second, event.keys, absl::InfiniteFuture(), 1}, answer->status, answer->chunks);
}

void Oracle::Judge(const core::OperatorPinAsked& event, const Effects& effects) {
  const auto* answer = Only<core::PinAnswered>(effects);
  if (!Expect(answer != nullptr && answer->tag == event.tag, kOneAnswer, "an operator's pin gets one answer")) return;
  JudgePin({event.space, event.owner, event.keys, now_ + event.lasts, 0}, answer->status, answer->chunks);
}

void Oracle::JudgePin(const PinWish& wish, const absl::Status& status, uint32_t chunks) {
  if (!Expect(chunks <= wish.keys.size(), kOneAnswer, "a pin has no more chunks than it named")) return;
  if (!status.ok()) {
    ++coverage_.pins_refused;
    Expect(status.code() == absl::StatusCode::kResourceExhausted && chunks == 0, kOneAnswer,
           "a pin is refused for its budget only");
    return;
  }
  if (wish.keys.empty()) return;
  const PinPlace name{wish.space.value,
                      {wish.owner, wish.keys.back(), static_cast<uint32_t>(wish.keys.size()), wish.counts == 0}};
  const auto known = pins_.find(name);
  if (chunks == 0) {
    if (known != pins_.end()) known->second.count += wish.counts;
    return;
  }
  ++coverage_.pins;
  Pin pin;
  pin.chunks = chunks;
  pin.count = known == pins_.end() ? 1 : known->second.count + wish.counts;
  pin.until = wish.until;
  pin.bytes = Needed(wish.space, wish.keys, pin.chunks, &pin.shards);
  if (!verdict_.kept()) return;
  for (const ShardId shard : pin.shards) memory_.Lease(shard);
  if (known != pins_.end()) EndPin(known);
  const std::string& tenant = specs_.at(wish.space.value).tenant;
  pinned_[tenant] += pin.bytes;
  Expect(static_cast<double>(pinned_[tenant].value) <= static_cast<double>(EntitledTo(tenant).value) * options_.pin_share,
         kBudgetsHold, "a tenant's pins keep more than their share");
  pins_.emplace(name, std::move(pin));
}

void Oracle::EndExpiredPins() {
  for (auto at = pins_.begin(); at != pins_.end();) {
    const auto pin = at++;
    if (pin->second.until > now_) continue;
    ++coverage_.pins_expired;
    EndPin(pin);
  }
}

void Oracle::Judge(const core::UnpinAsked& event, const Effects& effects) {
  const Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's unpin was answered");
    return;
  }
  const auto* answer = Only<core::Answered>(effects);
  Expect(answer != nullptr && answer->tag == event.tag && answer->status.ok(), kOneAnswer, "an unpin gets one answer");
  if (event.keys.empty()) return;
  const auto pin = pins_.find(
      {session->space.value, {session->name.second, event.keys.back(), static_cast<uint32_t>(event.keys.size())}});
  if (pin != pins_.end() && --pin->second.count == 0) EndPin(pin);
}

void Oracle::Judge(const core::PinRemoved& event, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "removing a pin has no answer");
  const auto pin = pins_.find({event.space.value, event.pin});
  if (pin != pins_.end()) EndPin(pin);
}

void Oracle::Judge(const core::HintAsked&, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "a hint has no answer");
}

// ---- Private allocations ----------------------------------------------------------------------------------------------------

void Oracle::EndAllocation(std::map<uint64_t, Allocation>::iterator at) {
  for (const auto& [where, place] : at->second.places) {
    if (place.content != 0) memory_.Unlease(place.content);
  }
  const auto instance = instances_.find(at->second.name);
  if (instance != instances_.end() && instance->second.id == at->second.instance)
    instance->second.allocated -= at->second.bytes;
  for (const auto& [id, op] : ops_) coverage_.swaps_freed_under += op.allocation == at->first;
  allocations_.erase(at);
}

void Oracle::Judge(const core::AllocateAsked& event, const Effects& effects) {
  const Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's allocation was answered");
    return;
  }
  const auto* answer = Only<core::Answered>(effects);
  if (!Expect(answer != nullptr && answer->session == event.session && answer->tag == event.tag, kOneAnswer,
              "an allocation gets one answer")) {
    return;
  }
  const core::SpaceSpec& spec = specs_.at(session->space.value);
  const bool valid = event.group.value < spec.groups.size() && event.chunks > 0 && event.chunks <= core::Core::kKeysMax &&
                     event.chunks * (1 + spec.groups[event.group.value].slot_bytes.size()) <= options_.event_work;
  if (!answer->status.ok()) {
    ++coverage_.allocations_refused;
    Expect(!answer->allocation &&
               answer->status.code() == (valid ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInvalidArgument),
           kOneAnswer, "an allocation is refused for want of room, or for arguments that make no sense");
    return;
  }
  Expect(valid && answer->chunks == event.chunks && allocations_ever_.insert(answer->allocation.Pack()).second,
         kStaleRefused, "an allocation that makes no sense, or with the name of an earlier one");
  if (!verdict_.kept()) return;
  ++coverage_.allocations;
  Allocation allocation{session->name, session->instance, event.session, session->space, event.group, event.chunks, {}, {}};
  for (const Bytes slot : spec.groups[event.group.value].slot_bytes) allocation.bytes += slot * event.chunks;
  Instance& instance = instances_.at(session->name);
  instance.allocated += allocation.bytes;
  Expect(
      static_cast<double>(instance.allocated.value) <= static_cast<double>(slots_.capacity().value) * options_.private_share,
      kBudgetsHold, "an instance's private allocations take more than their share");
  allocations_.emplace(answer->allocation.Pack(), std::move(allocation));
}

void Oracle::Judge(const core::FreeAsked& event, const Effects& effects) {
  Expect(effects.empty(), kOneAnswer, "a free has no answer");
  const Session* session = FindOpen(event.session);
  const auto allocation = allocations_.find(event.allocation.Pack());
  if (session != nullptr && allocation != allocations_.end() && allocation->second.instance == session->instance)
    EndAllocation(allocation);
}

bool Oracle::Conflicts(const core::SwapAsked& event, uint32_t shard) const {
  for (const auto& [id, op] : ops_) {
    if (op.allocation != event.allocation.Pack()) continue;
    if (op.direction == Direction::kLoad && event.direction == Direction::kLoad) continue;
    const auto count = static_cast<uint32_t>(op.shards.size());
    if (memory_[op.shards[0]].rank.value == shard && event.first < op.first + count && op.first < event.first + event.count)
      return true;
  }
  return false;
}

void Oracle::Judge(const core::SwapAsked& event, const Effects& effects) {
  Session* session = FindOpen(event.session);
  if (session == nullptr) {
    Expect(effects.empty(), kOneAnswer, "a dead session's swap was answered");
    return;
  }
  const auto refused = [&](absl::StatusCode code, const char* detail) {
    ++coverage_.swaps_refused;
    Expect(Refused(effects, event.session, event.tag, code), kOneAnswer, detail);
  };
  if (session->role != core::Role::kWorker)
    return refused(absl::StatusCode::kFailedPrecondition, "a scheduler's swap was not refused");
  const auto found = allocations_.find(event.allocation.Pack());
  if (found == allocations_.end() || found->second.instance != session->instance)
    return refused(absl::StatusCode::kAborted,
                   "a swap of an allocation that has ended, or never was its instance's, was not refused");
  Allocation& allocation = found->second;
  if (event.group != allocation.group || event.count == 0 || uint64_t{event.first} + event.count > allocation.chunks ||
      event.first_layer != 0 || event.layers != 1) {
    return refused(absl::StatusCode::kInvalidArgument, "a swap past its allocation was not refused");
  }
  const core::GroupSpec& spec = GroupOf(session->space, event.group);
  const uint32_t number = session->rank.value / spec.ranks_per_shard;
  const bool out = event.direction == Direction::kStore;
  if (out && session->rank.value % spec.ranks_per_shard != 0) {
    const auto* ended = Only<core::OpEnded>(effects);
    Expect(ended != nullptr && ended->status.ok() && ended->copied == 0 && ended->skipped == event.count, kOneAnswer,
           "of ranks with equal bytes only the first takes them out");
    return;
  }
  bool written = true;
  for (uint32_t k = event.first; k < event.first + event.count; ++k) written &= allocation.places[{number, k}].content != 0;
  if (Conflicts(event, number) || (!out && !written))
    return refused(absl::StatusCode::kFailedPrecondition,
                   "a swap beside another one of the same bytes, or of nothing, was not refused");
  const CopyStarted* copy = Started(effects, event.session, event.tag, event.direction);
  if (!Expect(copy != nullptr && copy->slots.size() == event.count, kOneAnswer, "a good swap did not start")) return;
  Op op{event.session, event.tag, event.direction, {}, {}};
  op.allocation = event.allocation.Pack();
  op.first = event.first;
  for (uint32_t k = 0; k < event.count && verdict_.kept(); ++k) {
    Allocation::Place& place = allocation.places[{number, event.first + k}];
    const SlotRef slot = copy->slots[k];
    Expect(copy->chunk_of[k] == k && (!place.slot.has_value() || *place.slot == slot), kNoWrongBytes,
           "a swap goes to other slots than before");
    place.slot = slot;
    if (!out) {
      memory_.BeginLoad(place.content);
      op.shards.push_back(place.content);
      continue;
    }
    if (place.content != 0) memory_.Unlease(std::exchange(place.content, 0));  // what was there is torn from now on
    Shard shard{allocation.space, event.group, {}, Rank{static_cast<uint16_t>(number)}, {}, 0, slot};
    op.shards.push_back(memory_.BeginStore(shard));
  }
  ++(out ? coverage_.swaps_out : coverage_.swaps_in);
  session->ops.insert(copy->op.Pack());
  ops_.emplace(copy->op.Pack(), std::move(op));
}

void Oracle::SwapEnded(const Op& op, bool ok) {
  const auto found = allocations_.find(op.allocation);
  if (found == allocations_.end() || op.direction == Direction::kLoad || !ok) return;
  for (uint32_t k = 0; k < op.shards.size(); ++k) {
    const ShardId shard = op.shards[k];
    found->second.places[{memory_[shard].rank.value, op.first + k}].content = shard;
    memory_.Lease(shard);  // nobody else may have its slot
  }
}

}  // namespace kvist::sim
