#include "tests/sim/memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvist::sim {

std::string Describe(ShardId id, const Shard& shard) {
  return absl::StrCat("shard ", id, " (space ", shard.space.value, ", group ", shard.group.value, ", rank ",
                      shard.rank.value, ", key ", absl::Hex(shard.key.word(0)), ", slot ", shard.slot.index, "/",
                      shard.slot.generation, ")");
}

Memory::Memory(const std::vector<Bytes>& regions, const pool::SlotAllocator* slots, Verdict* verdict)
    : slots_(*slots), verdict_(*verdict) {
  uint32_t pages = 0;
  for (const Bytes region : regions) {
    first_page_.push_back(pages);
    pages += static_cast<uint32_t>(region / kPageOfMemory);
  }
  pages_.resize(pages);
}

uint32_t Memory::FirstPageOf(SlotRef slot) const {
  const pool::SlotAllocator::Place place = slots_.PlaceOf(slot);
  return first_page_[place.region] + static_cast<uint32_t>(place.offset.value / kPageOfMemory.value);
}

ShardId Memory::BeginStore(Shard shard) {
  const auto id = static_cast<ShardId>(shards_.size());
  if (!slots_.IsLive(shard.slot)) {
    verdict_.Break(kNoWrongBytes, absl::StrCat("a store is sent to a free slot: ", Describe(id, shard)));
    shards_.push_back(std::move(shard));
    return id;
  }
  shard.first_page = FirstPageOf(shard.slot);
  shard.pages = static_cast<uint32_t>(slots_.PlaceOf(shard.slot).length / kPageOfMemory);
  for (uint32_t p = 0; p < shard.pages; ++p) {
    Page& page = pages_[shard.first_page + p];
    const Shard& before = shards_[page.owner];
    const auto say = [&](const char* what) {
      return absl::StrCat(Describe(id, shard), " overwrites ", Describe(page.owner, before), what);
    };
    if (page.owner != 0) {
      if (before.state == Shard::State::kWriting) verdict_.Break(kNoWrongBytes, say(", which another copy is writing"));
      if (before.readers > 0) verdict_.Break(kNoWrongBytes, say(", which a load is reading"));
      if (before.leases > 0) verdict_.Break(kNoWrongBytes, say(", which is leased"));
    }
    page.owner = id;
    page.content = 0;
  }
  shards_.push_back(std::move(shard));
  return id;
}

void Memory::WritePage(ShardId id, uint32_t page) { pages_[shards_[id].first_page + page].content = id; }

void Memory::EndStore(ShardId id, bool complete) {
  shards_[id].state = complete ? Shard::State::kComplete : Shard::State::kGarbage;
}

Memory::SlotCopy Memory::BeginCopy(SlotRef from, SlotRef to) {
  const ShardId of = pages_[FirstPageOf(from)].owner;
  Shard shard = shards_[of];
  if (!Intact(of) || shard.slot != from)
    verdict_.Break(kNoWrongBytes, absl::StrCat("what is to be moved is no whole shard: ", Describe(of, shard)));
  shard.slot = to;
  shard.state = Shard::State::kWriting;
  shard.readers = shard.leases = 0;
  return {of, BeginStore(std::move(shard))};
}

void Memory::CopyPage(const SlotCopy& copy, uint32_t page) {
  if (const ShardId found = pages_[shards_[copy.of].first_page + page].content; found != copy.of)
    verdict_.Break(kNoWrongBytes,
                   absl::StrCat("overwritten while it is being moved: ", Describe(copy.of, shards_[copy.of])));
  WritePage(copy.to, page);
}

void Memory::Take(const SlotCopy& copy) {
  Shard& shard = shards_[copy.of];
  Shard& in_old_place = shards_[copy.to];
  std::swap(shard.slot, in_old_place.slot);
  std::swap(shard.first_page, in_old_place.first_page);
  in_old_place.readers = std::exchange(shard.readers, 0);
  for (const ShardId id : {copy.of, copy.to}) {
    for (uint32_t p = 0; p < shards_[id].pages; ++p) pages_[shards_[id].first_page + p] = {id, id};
  }
  if (!Intact(copy.of)) verdict_.Break(kNoWrongBytes, absl::StrCat("moved to a free slot: ", Describe(copy.of, shard)));
}

void Memory::NewSlots() {
  for (ShardId id = 1; id < shards_.size(); ++id) {
    Shard& shard = shards_[id];
    constexpr uint32_t kFirstGeneration = 1;
    shard.slot.generation = kFirstGeneration;
    const bool kept = slots_.IsLive(shard.slot) && pages_[shard.first_page].owner == id && Intact(id);
    if (!kept) shard.slot.generation = 0;
  }
}

void Memory::BeginLoad(ShardId id) {
  Shard& shard = shards_[id];
  ++shard.readers;
  if (!Intact(id))
    verdict_.Break(kNoWrongBytes,
                   absl::StrCat("a load starts on ", Describe(id, shard), ", which is torn, freed or overwritten"));
}

void Memory::CheckRead(ShardId id) const {
  if (!slots_.IsLive(shards_[id].slot))
    verdict_.Break(kNoWrongBytes, absl::StrCat("the slot is free of what a load reads: ", Describe(id, shards_[id])));
}

void Memory::ReadPage(ShardId id, uint32_t page) {
  const Shard& shard = shards_[id];
  const ShardId found = pages_[shard.first_page + page].content;
  if (found != id) {
    verdict_.Break(kNoWrongBytes, absl::StrCat("a load reads ", found == 0 ? "garbage" : Describe(found, shards_[found]),
                                               " instead of ", Describe(id, shard)));
  }
}

bool Memory::Intact(ShardId id) const {
  const Shard& shard = shards_[id];
  if (shard.state != Shard::State::kComplete || !slots_.IsLive(shard.slot)) return false;
  for (uint32_t p = 0; p < shard.pages; ++p) {
    if (pages_[shard.first_page + p].content != id) return false;
  }
  return true;
}

}  // namespace kvist::sim
