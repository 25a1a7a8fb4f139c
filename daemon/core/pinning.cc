// What the core does when chunks are pinned, unpinned, and hinted at.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

Bytes Core::PinBudget(TenantId tenant) const { return ShareOf(tenants_.EntitledTo(tenant), options_.pin_share); }

absl::StatusOr<uint32_t> Core::PinPosition(SpaceId space, std::string owner, std::span<const ChunkKey> keys, PinWish wish) {
  KVIST_CHECK(keys.size() <= kKeysMax);
  const TenantId tenant = spaces_[space].tenant;
  const uint32_t position = usable_.Find(space, spaces_[space].epoch, spaces_[space].spec.groups, keys);
  if (keys.empty()) return 0;
  const PinName name{std::move(owner), keys.back(), static_cast<uint32_t>(keys.size()), wish.by_operator};

  Pin* known = pins_.Find(space, name);
  const bool over = known != nullptr && known->until <= now_;  // though no Tick has ended it yet: then this is another one
  if (position == 0) {
    // Its unpin will come, too, and is not to end what an earlier one has asked for.
    if (known != nullptr && !over) known->count += wish.by_operator ? 0 : 1;
    return 0;
  }
  Lease needed = LeaseOn(space, position, 0);
  if (known != nullptr && !over && known->chunks == position && known->kept == needed.kept && known->until == wish.until) {
    known->count += wish.by_operator ? 0 : 1;
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
          .count = 1,
          .since = now_,
          .until = wish.until,
          .kept = std::move(needed.kept)};
  Keep(pin.kept);
  UseOnDisk(pin.kept);
  if (known != nullptr) {  // more of it is there now, or some of it was lost and stored again; or it is to last otherwise
    Pin before = pins_.Take(space, tenant, name);
    if (!over) {
      pin.number = before.number;
      pin.count = before.count + (wish.by_operator ? 0 : 1);
      pin.since = before.since;
    }
    KeepNoLonger(before.kept);  // only now: nothing else may keep what both do
  }
  pins_.Add(space, tenant, name, std::move(pin));
  return position;
}

void Core::On(const PinAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const absl::StatusOr<uint32_t> chunks = PinPosition(session->space, sessions_.NameOf(session->instance), event.keys, {});
  out->push_back(Answered{event.session, event.tag, chunks.status(), chunks.value_or(0), {}});
}

void Core::On(const OperatorPinAsked& event, Effects* out) {
  KVIST_CHECK(spaces_.Has(event.space));
  const absl::StatusOr<uint32_t> chunks =
      PinPosition(event.space, event.owner, event.keys, {.until = now_ + event.lasts, .by_operator = true});
  out->push_back(PinAnswered{event.tag, chunks.status(), chunks.value_or(0)});
}

void Core::On(const UnpinAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const SpaceId space = session->space;
  if (!event.keys.empty()) {
    const PinName name{sessions_.NameOf(session->instance), event.keys.back(), static_cast<uint32_t>(event.keys.size())};
    if (Pin* pin = pins_.Find(space, name); pin != nullptr && --pin->count == 0)
      KeepNoLonger(pins_.Take(space, spaces_[space].tenant, name).kept);
  }
  out->push_back(Answered{event.session, event.tag, absl::OkStatus(), 0, {}});
}

void Core::On(const PinRemoved& event, Effects*) {
  if (!spaces_.Has(event.space)) return;
  const PinName& name = event.pin;
  if (pins_.Find(event.space, name) != nullptr)
    KeepNoLonger(pins_.Take(event.space, spaces_[event.space].tenant, name).kept);
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
      chunk.session_ended = event.hint.session_ended;
      chunk.expected_reuse = event.hint.expected_reuse;
      chunk.stop_reason = event.hint.stop_reason;
      placement_.PolicyOf(i).Hinted(i);
    }
  }
}

}  // namespace kvist::core
