#include "storage/pool/slot_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::pool {
namespace {

constexpr uint64_t kIndexes = uint64_t{1} << 32;

bool IsPages(Bytes n) { return n.value > 0 && n.value % kPageOfMemory.value == 0; }

}  // namespace

absl::StatusOr<SlotAllocator> SlotAllocator::Create(Options options) {
  if (!IsPages(options.slot_bytes_min)) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot_bytes_min must be a positive multiple of 4096, not ", options.slot_bytes_min.value));
  }
  if (!IsPages(options.slab_bytes) || options.slab_bytes < options.slot_bytes_min) {
    return absl::InvalidArgumentError(absl::StrCat("pool.slab_bytes must be a multiple of 4096 and at least ",
                                                   options.slot_bytes_min.value, ", not ", options.slab_bytes.value));
  }
  if (options.regions.size() > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("regions: at most 65535, not ", options.regions.size()));
  }
  const uint64_t places = options.slab_bytes / options.slot_bytes_min;
  const auto place_bits = static_cast<uint32_t>(std::bit_width(places - 1));
  if (place_bits > 32) {
    return absl::InvalidArgumentError(absl::StrCat("pool.slab_bytes: ", options.slab_bytes.value,
                                                   " is too large, a slab holds at most 2^32 slots: lower it"));
  }
  const uint64_t slabs_max = std::min((kIndexes >> place_bits), uint64_t{kNone});
  uint64_t slabs = 0;
  for (Bytes region : options.regions) {
    slabs += region / options.slab_bytes;
    if (slabs > slabs_max) {
      return absl::InvalidArgumentError(absl::StrCat("pool.bytes: more than ", slabs_max, " slabs of ",
                                                     options.slab_bytes.value,
                                                     " bytes can't be numbered: lower pool.bytes or raise slot_bytes_min"));
    }
  }
  if (slabs == 0) {
    return absl::InvalidArgumentError(absl::StrCat("pool.bytes: no region holds a slab of ", options.slab_bytes.value,
                                                   " bytes: raise pool.bytes or lower pool.slab_bytes"));
  }
  return SlotAllocator(std::move(options), place_bits);
}

SlotAllocator::SlotAllocator(Options options, uint32_t place_bits) : options_(std::move(options)), place_bits_(place_bits) {
  static_assert(sizeof(Slab) == 40, "the header promises so much per slab");
  for (Bytes region : options_.regions) free_slabs_ += region / options_.slab_bytes;
  slabs_.resize(free_slabs_);
  uint32_t first = 0;
  for (Bytes length : options_.regions) {
    const auto count = static_cast<uint32_t>(length / options_.slab_bytes);
    // Ascending, so that a fresh pool is used from its front: that is where pre-touching starts.
    for (uint32_t i = 0; i < count; ++i) {
      slabs_[first + i].region = static_cast<uint16_t>(regions_.size());
      slabs_[first + i].next = i + 1 < count ? first + i + 1 : kNone;
    }
    regions_.push_back({.first_slab = first, .free_slab = count > 0 ? first : kNone});
    first += count;
  }
}

absl::StatusOr<SlotClass> SlotAllocator::ClassFor(Bytes slot_bytes) {
  if (auto it = class_of_size_.find(slot_bytes.value); it != class_of_size_.end()) return it->second;
  if (!IsPages(slot_bytes) || slot_bytes < options_.slot_bytes_min) {
    return absl::InvalidArgumentError(absl::StrCat("a slot must be a multiple of 4096 bytes and at least ",
                                                   options_.slot_bytes_min.value, ", not ", slot_bytes.value));
  }
  if (slot_bytes > options_.slab_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a slot of ", slot_bytes.value, " bytes is larger than a slab of ",
                                                   options_.slab_bytes.value, ": raise pool.slab_bytes"));
  }
  if (classes_.size() == kNoClass) {
    return absl::ResourceExhaustedError(absl::StrCat("no class left for slots of ", slot_bytes.value, " bytes: ", kNoClass,
                                                     " different sizes have been used since the daemon started"));
  }
  const SlotClass slot_class{static_cast<uint16_t>(classes_.size())};
  classes_.push_back({.slot_bytes = slot_bytes,
                      .slots_per_slab = static_cast<uint32_t>(options_.slab_bytes / slot_bytes),
                      .tail_bytes = options_.slab_bytes - slot_bytes * (options_.slab_bytes / slot_bytes),
                      .partial = std::vector<SlabList>(regions_.size())});
  class_of_size_.emplace(slot_bytes.value, slot_class);
  return slot_class;
}

std::optional<SlotRef> SlotAllocator::Allocate(SlotClass slot_class, uint32_t near) {
  KVIST_CHECK(slot_class.value < classes_.size());
  KVIST_CHECK(near < regions_.size());
  Class& c = classes_[slot_class.value];
  const auto take_in = [&](uint32_t region) -> std::optional<SlotRef> {
    if (c.partial[region].front == kNone) {
      if (regions_[region].free_slab == kNone) return std::nullopt;
      TakeFreeSlab(region, slot_class);
    }
    return TakePlace(c.partial[region].front);
  };
  if (auto slot = take_in(near)) return slot;
  for (uint32_t region = 0; region < regions_.size(); ++region) {
    if (auto slot = take_in(region)) return slot;
  }
  return std::nullopt;
}

void SlotAllocator::TakeFreeSlab(uint32_t region, SlotClass slot_class) {
  const uint32_t number = regions_[region].free_slab;
  regions_[region].free_slab = std::exchange(slabs_[number].next, kNone);
  GiveTo(slot_class, number);
}

// A slab that is in no list.
void SlotAllocator::GiveTo(SlotClass slot_class, uint32_t number) {
  Class& c = classes_[slot_class.value];
  Slab& slab = slabs_[number];
  --free_slabs_;
  tail_bytes_ += c.tail_bytes;
  if (slab.places_size < c.slots_per_slab) {
    auto places = std::make_unique<PlaceState[]>(c.slots_per_slab);
    std::copy_n(slab.places.get(), slab.places_size, places.get());
    slab.places = std::move(places);
    slab.places_size = c.slots_per_slab;
  }
  slab.slot_class = slot_class.value;
  slab.fresh = 0;
  slab.freed = kNone;
  CountFree(slot_class.value, c.slots_per_slab);
  PushFront(c.partial[slab.region], number);
}

void SlotAllocator::CountFree(uint16_t slot_class, uint64_t places) {
  Class& c = classes_[slot_class];
  c.free_places += places;
  if (c.loose || c.free_places < c.slots_per_slab) return;
  c.loose = true;
  loose_.push_back(slot_class);
}

SlotRef SlotAllocator::TakePlace(uint32_t slab_number) {
  Slab& slab = slabs_[slab_number];
  uint32_t place = slab.freed;
  if (place != kNone) {
    slab.freed = slab.places[place].next_free;
  } else {
    place = slab.fresh++;
  }
  return TakePlace(slab_number, place);
}

// A free place below `fresh` that is in no list.
SlotRef SlotAllocator::TakePlace(uint32_t slab_number, uint32_t place) {
  Slab& slab = slabs_[slab_number];
  Class& c = classes_[slab.slot_class];
  if (++slab.live == c.slots_per_slab) Unlink(c.partial[slab.region], slab_number);
  --c.free_places;
  slab.places[place].owner = kNobody;
  ++live_slots_;
  live_bytes_ += c.slot_bytes;
  const uint32_t generation = ++slab.places[place].generation;
  return {.index = static_cast<uint32_t>(uint64_t{slab_number} << place_bits_ | place), .generation = generation};
}

std::optional<SlotRef> SlotAllocator::Retake(SlotClass slot_class, uint32_t index) {
  KVIST_CHECK(slot_class.value < classes_.size());
  const uint32_t number = SlabOf({index, 0});
  const uint32_t place = PlaceInSlab({index, 0});
  if (number >= slabs_.size() || place >= classes_[slot_class.value].slots_per_slab) return std::nullopt;
  Slab& slab = slabs_[number];
  if (slab.slot_class == kNoClass) {
    uint32_t* link = &regions_[slab.region].free_slab;
    while (*link != number) link = &slabs_[*link].next;
    *link = std::exchange(slab.next, kNone);
    GiveTo(slot_class, number);
  }
  if (slab.slot_class != slot_class.value || place < slab.fresh) return std::nullopt;
  while (slab.fresh < place) {
    slab.places[slab.fresh].next_free = std::exchange(slab.freed, slab.fresh);
    ++slab.fresh;
  }
  ++slab.fresh;
  return TakePlace(number, place);
}

void SlotAllocator::Free(SlotRef slot) {
  KVIST_CHECK(IsLive(slot));
  const uint32_t number = SlabOf(slot);
  Slab& slab = slabs_[number];
  Class& c = classes_[slab.slot_class];
  SlabList& partial = c.partial[slab.region];
  PlaceState& place = slab.places[PlaceInSlab(slot)];
  ++place.generation;
  place.next_free = std::exchange(slab.freed, PlaceInSlab(slot));
  --live_slots_;
  live_bytes_ -= c.slot_bytes;

  const bool was_full = slab.live == c.slots_per_slab;
  --slab.live;
  if (slab.closed) return;
  if (slab.live == 0) {
    if (!was_full) Unlink(partial, number);
    c.free_places -= c.slots_per_slab - 1;
    GiveBack(number);
    return;
  }
  CountFree(slab.slot_class, 1);
  if (was_full) {
    PushFront(partial, number);
  } else if (slab.live == c.slots_per_slab / 2) {
    // From here on it is used last, so that it can empty out.
    Unlink(partial, number);
    PushBack(partial, number);
  }
}

// A slab without a live slot that is in no list.
void SlotAllocator::GiveBack(uint32_t number) {
  Slab& slab = slabs_[number];
  tail_bytes_ -= classes_[slab.slot_class].tail_bytes;
  slab.slot_class = kNoClass;
  slab.next = std::exchange(regions_[slab.region].free_slab, number);
  ++free_slabs_;
}

void SlotAllocator::SetOwner(SlotRef slot, uint32_t owner) {
  KVIST_CHECK(IsLive(slot));
  slabs_[SlabOf(slot)].places[PlaceInSlab(slot)].owner = owner;
}

uint32_t SlotAllocator::OwnerOf(SlotRef slot) const {
  KVIST_CHECK(IsLive(slot));
  return slabs_[SlabOf(slot)].places[PlaceInSlab(slot)].owner;
}

// ---- Emptying a slab --------------------------------------------------------------------------------------------------------

std::optional<uint32_t> SlotAllocator::Vacatable(std::optional<uint32_t> but) {
  const auto prune = [this] {
    while (!loose_.empty() && classes_[loose_.back()].free_places < classes_[loose_.back()].slots_per_slab) {
      classes_[loose_.back()].loose = false;
      loose_.pop_back();
    }
  };
  prune();
  if (loose_.empty()) return std::nullopt;
  if (but.has_value() && slabs_[*but].slot_class == loose_.back()) {
    // Where one of a class was tried in vain others have their turn.
    std::rotate(loose_.begin(), loose_.end() - 1, loose_.end());
    prune();
  }
  // Those that have had a free place for longest come last; the emptiest isn't far from there.
  constexpr int kLooks = 8;
  uint32_t emptiest = kNone;
  for (const SlabList& list : classes_[loose_.back()].partial) {
    uint32_t slab = list.back;
    for (int looks = 0; looks < kLooks && slab != kNone; ++looks, slab = slabs_[slab].prev) {
      if (slab != but && (emptiest == kNone || slabs_[slab].live < slabs_[emptiest].live)) emptiest = slab;
    }
  }
  return emptiest == kNone ? std::nullopt : std::optional(emptiest);
}

void SlotAllocator::Close(uint32_t number) {
  Slab& slab = slabs_[number];
  KVIST_CHECK(slab.slot_class != kNoClass && !slab.closed);
  Class& c = classes_[slab.slot_class];
  if (slab.live < c.slots_per_slab) Unlink(c.partial[slab.region], number);
  c.free_places -= c.slots_per_slab - slab.live;
  slab.closed = true;
}

void SlotAllocator::Open(uint32_t number, Opened as) {
  Slab& slab = slabs_[number];
  KVIST_CHECK(slab.closed);
  slab.closed = false;
  if (slab.live == 0) return GiveBack(number);
  Class& c = classes_[slab.slot_class];
  if (slab.live == c.slots_per_slab) return;
  CountFree(slab.slot_class, c.slots_per_slab - slab.live);
  as == Opened::kFirst ? PushFront(c.partial[slab.region], number) : PushBack(c.partial[slab.region], number);
}

std::optional<SlotRef> SlotAllocator::LiveAt(uint32_t number, uint32_t place) const {
  const uint32_t generation = slabs_[number].places[place].generation;
  if (generation % 2 == 0) return std::nullopt;
  return SlotRef{.index = static_cast<uint32_t>(uint64_t{number} << place_bits_ | place), .generation = generation};
}

std::optional<SlotRef> SlotAllocator::AllocateBeside(uint32_t number) {
  const Slab& slab = slabs_[number];
  KVIST_CHECK(slab.closed);
  const std::vector<SlabList>& partial = classes_[slab.slot_class].partial;
  if (partial[slab.region].front != kNone) return TakePlace(partial[slab.region].front);
  for (const SlabList& list : partial) {
    if (list.front != kNone) return TakePlace(list.front);
  }
  return std::nullopt;
}

bool SlotAllocator::IsLive(SlotRef slot) const {
  const uint32_t number = SlabOf(slot);
  if (slot.generation % 2 == 0 || number >= slabs_.size()) return false;
  const Slab& slab = slabs_[number];
  const uint32_t place = PlaceInSlab(slot);
  return place < slab.places_size && slab.places[place].generation == slot.generation;
}

void SlotAllocator::Prefetch(SlotRef slot) const {
  const uint32_t number = SlabOf(slot);
  if (number >= slabs_.size()) return;
  const Slab& slab = slabs_[number];
  if (const uint32_t place = PlaceInSlab(slot); place < slab.places_size) __builtin_prefetch(&slab.places[place], /*rw=*/1);
}

SlotAllocator::Place SlotAllocator::PlaceOf(SlotRef slot) const {
  const uint32_t number = SlabOf(slot);
  KVIST_CHECK(IsLive(slot) || slabs_[number].closed);
  const Slab& slab = slabs_[number];
  const Bytes slot_bytes = classes_[slab.slot_class].slot_bytes;
  const uint64_t slab_in_region = number - regions_[slab.region].first_slab;
  return {.region = slab.region,
          .offset = ByteOffset{} + options_.slab_bytes * slab_in_region + slot_bytes * PlaceInSlab(slot),
          .length = slot_bytes};
}

void SlotAllocator::PushFront(SlabList& list, uint32_t slab_number) {
  Slab& slab = slabs_[slab_number];
  slab.prev = kNone;
  slab.next = std::exchange(list.front, slab_number);
  (slab.next == kNone ? list.back : slabs_[slab.next].prev) = slab_number;
}

void SlotAllocator::PushBack(SlabList& list, uint32_t slab_number) {
  Slab& slab = slabs_[slab_number];
  slab.next = kNone;
  slab.prev = std::exchange(list.back, slab_number);
  (slab.prev == kNone ? list.front : slabs_[slab.prev].next) = slab_number;
}

void SlotAllocator::Unlink(SlabList& list, uint32_t slab_number) {
  Slab& slab = slabs_[slab_number];
  (slab.prev == kNone ? list.front : slabs_[slab.prev].next) = slab.next;
  (slab.next == kNone ? list.back : slabs_[slab.next].prev) = slab.prev;
  slab.prev = slab.next = kNone;
}

void SlotAllocator::CheckInvariants() const {
  std::vector<bool> listed(slabs_.size());
  uint64_t free_slabs = 0;
  for (uint32_t r = 0; r < regions_.size(); ++r) {
    for (uint32_t s = regions_[r].free_slab; s != kNone; s = slabs_[s].next) {
      KVIST_CHECK(!listed[s] && slabs_[s].slot_class == kNoClass && slabs_[s].region == r);
      listed[s] = true;
      ++free_slabs;
    }
  }
  KVIST_CHECK(free_slabs == free_slabs_);

  for (uint32_t k = 0; k < classes_.size(); ++k) {
    for (uint32_t r = 0; r < regions_.size(); ++r) {
      const SlabList& list = classes_[k].partial[r];
      uint32_t prev = kNone;
      for (uint32_t s = list.front; s != kNone; prev = s, s = slabs_[s].next) {
        const Slab& slab = slabs_[s];
        KVIST_CHECK(!listed[s] && slab.slot_class == k && slab.region == r && slab.prev == prev);
        KVIST_CHECK(slab.live > 0 && slab.live < classes_[k].slots_per_slab);
        listed[s] = true;
      }
      KVIST_CHECK(list.back == prev);
    }
  }

  uint64_t live_slots = 0;
  Bytes live_bytes{}, tail_bytes{};
  std::vector<uint64_t> free_places(classes_.size());
  for (uint32_t s = 0; s < slabs_.size(); ++s) {
    const Slab& slab = slabs_[s];
    uint32_t live = 0;
    for (uint32_t p = 0; p < slab.places_size; ++p) live += slab.places[p].generation % 2;
    KVIST_CHECK(live == slab.live);
    if (!slab.closed && slab.slot_class != kNoClass)
      free_places[slab.slot_class] += classes_[slab.slot_class].slots_per_slab - live;
    if (slab.slot_class == kNoClass) {
      KVIST_CHECK(live == 0 && listed[s]);
      continue;
    }
    const Class& c = classes_[slab.slot_class];
    KVIST_CHECK(slab.fresh <= c.slots_per_slab && c.slots_per_slab <= slab.places_size);
    KVIST_CHECK(listed[s] == (live < c.slots_per_slab && !slab.closed));
    // Below `fresh` a place is live or in the list of freed ones; above it none is live.
    uint32_t freed = 0;
    for (uint32_t p = slab.freed; p != kNone; p = slab.places[p].next_free) {
      KVIST_CHECK(p < slab.fresh && slab.places[p].generation % 2 == 0 && ++freed <= slab.fresh);
    }
    KVIST_CHECK(live + freed == slab.fresh);
    live_slots += live;
    live_bytes += c.slot_bytes * live;
    tail_bytes += c.tail_bytes;
  }
  KVIST_CHECK(live_slots == live_slots_ && live_bytes == live_bytes_ && tail_bytes == tail_bytes_);
  for (uint32_t k = 0; k < classes_.size(); ++k) {
    const Class& c = classes_[k];
    KVIST_CHECK(c.free_places == free_places[k] && (c.loose || c.free_places < c.slots_per_slab));
    KVIST_CHECK(c.loose == (std::count(loose_.begin(), loose_.end(), k) == 1));
  }
}

}  // namespace kvist::pool
