// What the core does when chunks are pinned, unpinned, and hinted at; and what a later daemon is to know of pins.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

Bytes Core::PinBudget(TenantId tenant) const { return ShareOf(tenants_.EntitledTo(tenant), options_.pin_share); }

absl::StatusOr<uint32_t> Core::PinPosition(SpaceId space, const PinName& name, std::span<const ChunkKey> keys,
                                           PinWish wish) {
  KVIST_CHECK(keys.size() <= kKeysMax);
  const TenantId tenant = spaces_[space].tenant;
  const uint32_t position = usable_.Find(space, spaces_[space].epoch, spaces_[space].spec.groups, keys);

  Pin* known = pins_.Find(space, name);
  const bool over = known != nullptr && known->until <= now_;  // though no Tick has ended it yet: then this is another one
  if (position == 0) {
    // Its unpin will come, too, and is not to end what an earlier one has asked for.
    if (known != nullptr && !over && wish.times > 0) {
      known->count += wish.times;
      NotePin(space, name, *known, keys);
    }
    return 0;
  }
  Lease needed = LeaseOn(space, position, 0);
  if (known != nullptr && !over && known->chunks == position && known->kept == needed.kept && known->until == wish.until) {
    known->count += wish.times;
    if (wish.times > 0) NotePin(space, name, *known, keys);
    return position;
  }
  const Bytes others = pins_.used(tenant) - (known == nullptr ? Bytes{} : known->bytes);
  if (others + needed.bytes > PinBudget(tenant) || (known == nullptr && pins_.Full(space))) {
    return absl::ResourceExhaustedError(absl::StrCat("pinning ", position, " chunks takes ", needed.bytes.value,
                                                     " bytes, and the tenant's other pins keep ", others.value, " of the ",
                                                     PinBudget(tenant).value, " they may: unpin others first"));
  }
  Pin pin{.chunks = position,
          .bytes = needed.bytes,
          .count = std::max<uint64_t>(wish.times, 1),
          .since = now_,
          .until = wish.until,
          .kept = std::move(needed.kept)};
  Keep(pin.kept);
  UseOnDisk(pin.kept);
  if (known != nullptr) {  // more of it is there now, or some of it was lost and stored again; or it is to last otherwise
    Pin before = pins_.Take(space, tenant, name);
    if (!over) {
      pin.number = before.number;
      pin.count = before.count + wish.times;
      pin.since = before.since;
    }
    KeepNoLonger(before.kept);  // only now: nothing else may keep what both do
  }
  NotePin(space, name, pin, keys);
  pins_.Add(space, tenant, name, std::move(pin));
  return position;
}

void Core::EndPin(SpaceId space, const PinName& name) {
  KeepNoLonger(pins_.Take(space, spaces_[space].tenant, name).kept);
  NotePinEnded(space, name);
}

void Core::NotePin(SpaceId space, const PinName& name, const Pin& pin, std::span<const ChunkKey> keys) {
  if (!options_.disk.has_value()) return;
  const auto position = keys.first(std::min<size_t>(pin.chunks, keys.size()));
  chunks_.Charge(position.size() / 32);
  pin_notes_.Add(space, {name, pin.count, pin.until - now_, {position.begin(), position.end()}});
}

void Core::NotePinEnded(SpaceId space, const PinName& name) {
  if (!options_.disk.has_value()) return;
  if (!all_told_) untold_pins_.Ended(space, name);
  pin_notes_.Add(space, {.pin = name});
}

void Core::On(const PinAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  absl::StatusOr<uint32_t> chunks = 0;
  if (!event.keys.empty())
    chunks = PinPosition(session->space, PinName::Of(sessions_.NameOf(session->instance), event.keys), event.keys, {});
  out->push_back(Answered{event.session, event.tag, chunks.status(), chunks.value_or(0), {}});
}

void Core::On(const OperatorPinAsked& event, Effects* out) {
  KVIST_CHECK(spaces_.Has(event.space));
  absl::StatusOr<uint32_t> chunks = 0;
  if (!event.keys.empty()) {
    chunks = PinPosition(event.space, PinName::Of(event.owner, event.keys, /*by_operator=*/true), event.keys,
                         {.until = now_ + event.lasts, .times = 0});
  }
  out->push_back(PinAnswered{event.tag, chunks.status(), chunks.value_or(0)});
}

void Core::On(const UnpinAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const SpaceId space = session->space;
  if (!event.keys.empty()) {
    const PinName name = PinName::Of(sessions_.NameOf(session->instance), event.keys);
    if (Pin* pin = pins_.Find(space, name); pin == nullptr) {
      if (!all_told_) NotePinEnded(space, name);  // an earlier daemon may have known it
    } else if (--pin->count == 0) {
      EndPin(space, name);
    } else {
      NotePin(space, name, *pin, event.keys);
    }
  }
  out->push_back(Answered{event.session, event.tag, absl::OkStatus(), 0, {}});
}

void Core::On(const PinRemoved& event, Effects*) {
  if (spaces_.Has(event.space) && pins_.Find(event.space, event.pin) != nullptr) EndPin(event.space, event.pin);
}

void Core::On(const PinFound& event, Effects* out) {
  KVIST_CHECK(spaces_.Has(event.space) && event.note.count > 0);
  const PinNote& note = event.note;
  if (pins_.Find(event.space, note.pin) != nullptr) return;  // and its note is a newer one
  const bool over = note.lasts <= absl::ZeroDuration() || untold_pins_.IsOver(event.space, note.pin) ||
                    std::any_of(note.keys.begin(), note.keys.end(),
                                [&](const ChunkKey& key) { return untold_clears_.TakesChildrenOf(event.space, key); });
  if (over) return NotePinEnded(event.space, note.pin);
  absl::StatusOr<uint32_t> chunks = PinPosition(event.space, note.pin, note.keys, {now_ + note.lasts, note.count});
  if (chunks.ok() && *chunks == 0) chunks = absl::NotFoundError("nothing of it is there any more");
  if (!chunks.ok()) out->push_back(PinLost{event.space, note.pin, chunks.status()});
  // What of it can't be read just now the next daemon may find again.
  if (event.rows_left && chunks.value_or(0) < note.keys.size()) {
    pin_notes_.Add(event.space, note);
  } else if (!chunks.ok()) {
    NotePinEnded(event.space, note.pin);
  }
}

PinRow Core::RowOf(SpaceId space, const Pins::Named& named) const {
  const auto& [name, pin] = named;
  return {pin.number, space, name, pin.chunks, pin.bytes, pin.count, now_ - pin.since, pin.until - now_};
}

std::optional<PinRow> Core::FindPin(SpaceId space, const PinName& name) {
  const Pins::Named* pin = pins_.FindNamed(space, name);
  return pin == nullptr ? std::nullopt : std::optional(RowOf(space, *pin));
}

std::vector<PinRow> Core::pins() const {
  std::vector<PinRow> rows;
  pins_.ForEach([&](SpaceId space, const Pins::Named& named) { rows.push_back(RowOf(space, named)); });
  return rows;
}

PinPage Core::PinsAfter(uint64_t number, size_t looks) const {
  const Pins::Page page = pins_.After(number, looks);
  PinPage rows{.rows = {}, .next = page.next};
  for (const auto& [space, named] : page.pins) rows.rows.push_back(RowOf(space, *named));
  return rows;
}

uint32_t Core::HintKeysMax(SessionId id) {
  const Session* session = sessions_.Find(id);
  if (session == nullptr) return kKeysMax;
  // Each key is looked for in each group, and its chunk may move in the order.
  const auto groups = static_cast<uint32_t>(spaces_[session->space].spec.groups.size());
  return std::clamp(options_.event_work / (2 * groups), 1u, kKeysMax);
}

void Core::On(const HintAsked& event, Effects*) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  KVIST_CHECK(event.keys.size() <= HintKeysMax(event.session));
  const Space& space = spaces_[session->space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    for (const ChunkKey& key : event.keys) {
      const ChunkIndex i = chunks_.Find(session->space, GroupId{group}, key);
      if (i == kNoChunk) continue;
      chunks_.Charge(1);
      Chunk& chunk = chunks_[i];
      chunk.SetHint(event.hint);
      placement_.PolicyOf(i).Hinted(i);
    }
  }
}

}  // namespace kvist::core
