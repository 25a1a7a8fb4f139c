#include "storage/pool/slot_allocator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvist::pool {
namespace {

SlotAllocator Make(SlotAllocator::Options options) {
  auto allocator = SlotAllocator::Create(std::move(options));
  REQUIRE(allocator.ok());
  return std::move(*allocator);
}

SlotClass ClassOf(SlotAllocator& allocator, Bytes slot_bytes) {
  auto slot_class = allocator.ClassFor(slot_bytes);
  REQUIRE(slot_class.ok());
  return *slot_class;
}

std::vector<SlotRef> AllocateAll(SlotAllocator& allocator, SlotClass slot_class, uint32_t near = 0) {
  std::vector<SlotRef> slots;
  while (auto slot = allocator.Allocate(slot_class, near)) slots.push_back(*slot);
  return slots;
}

bool Names(const absl::Status& status, absl::StatusCode code, const char* word) {
  return status.code() == code && std::string(status.message()).find(word) != std::string::npos;
}

TEST_CASE("SlotAllocator refuses impossible options and names them") {
  const auto refused = [](SlotAllocator::Options options, const char* word) {
    return Names(SlotAllocator::Create(std::move(options)).status(), absl::StatusCode::kInvalidArgument, word);
  };
  CHECK(refused({.regions = {}}, "pool.bytes"));
  CHECK(refused({.regions = {MiB(63), MiB(63)}}, "pool.bytes"));
  CHECK(refused({.regions = {GiB(1)}, .slab_bytes = {}}, "pool.slab_bytes"));
  CHECK(refused({.regions = {GiB(1)}, .slab_bytes = Bytes{5000}}, "pool.slab_bytes"));
  CHECK(refused({.regions = {GiB(1)}, .slab_bytes = KiB(4), .slot_bytes_min = KiB(8)}, "pool.slab_bytes"));
  CHECK(refused({.regions = {GiB(1)}, .slot_bytes_min = {}}, "slot_bytes_min"));
  CHECK(refused({.regions = {GiB(1)}, .slot_bytes_min = Bytes{4097}}, "slot_bytes_min"));
  CHECK(refused({.regions = std::vector<Bytes>(70'000, MiB(64))}, "regions"));
  // 2^32 places of 4 KiB are 16 TiB, and lengths that add up to more than 64 bits are no way around it.
  CHECK(refused({.regions = {GiB(16 << 10), MiB(64)}}, "pool.bytes"));
  CHECK(refused({.regions = {Bytes{~0ull}, Bytes{~0ull}}, .slab_bytes = GiB(1)}, "pool.bytes"));
  CHECK(refused({.regions = {Bytes{~0ull}}, .slab_bytes = GiB(32 << 10)}, "pool.slab_bytes"));
}

TEST_CASE("SlotAllocator serves a pool of 16 TiB and its last place") {
  SlotAllocator allocator = Make({.regions = {GiB(16 << 10)}, .slab_bytes = GiB(16 << 10), .slot_bytes_min = GiB(1)});
  const SlotClass slot_class = ClassOf(allocator, GiB(1));
  const std::vector<SlotRef> slots = AllocateAll(allocator, slot_class);
  REQUIRE(slots.size() == 16 << 10);
  CHECK(allocator.PlaceOf(slots.back()).offset == ByteOffset{GiB((16 << 10) - 1).value});
  allocator.CheckInvariants();

  SlotAllocator single = Make({.regions = {GiB(16 << 10)}, .slab_bytes = GiB(16 << 10)});  // one slab with all 2^32 indexes
  CHECK(single.capacity() == GiB(16 << 10));
  CHECK(single.Allocate(ClassOf(single, GiB(16 << 10))).has_value());
}

TEST_CASE("SlotAllocator gives equal sizes one class and refuses sizes that can't be") {
  SlotAllocator allocator = Make({.regions = {MiB(4)}, .slab_bytes = MiB(1), .slot_bytes_min = KiB(8)});
  CHECK(ClassOf(allocator, KiB(64)) == ClassOf(allocator, KiB(64)));
  CHECK(ClassOf(allocator, KiB(64)) != ClassOf(allocator, KiB(68)));
  CHECK(ClassOf(allocator, MiB(1)) != ClassOf(allocator, KiB(64)));

  const auto refused = [&](Bytes n, const char* word) {
    return Names(allocator.ClassFor(n).status(), absl::StatusCode::kInvalidArgument, word);
  };
  CHECK(refused(MiB(1) + KiB(4), "pool.slab_bytes"));
  CHECK(refused({}, "4096"));
  CHECK(refused(Bytes{KiB(64).value + 1}, "4096"));
  CHECK(refused(KiB(4), "8192"));
}

TEST_CASE("SlotAllocator refuses the 65,536th class") {
  SlotAllocator allocator = Make({.regions = {GiB(1)}, .slab_bytes = GiB(1)});
  for (uint64_t i = 1; i <= 65'535; ++i) REQUIRE(allocator.ClassFor(KiB(4) * i).ok());
  CHECK(allocator.ClassFor(KiB(4) * 65'536).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(allocator.ClassFor(KiB(4) * 65'535).ok());  // known ones still answer
}

TEST_CASE("SlotAllocator gives exactly N slots when a slab is one slot") {
  constexpr uint64_t kSlots = 1000;
  const Bytes slot_bytes = MiB(2) + KiB(4);
  SlotAllocator allocator = Make({.regions = {slot_bytes * kSlots}, .slab_bytes = slot_bytes});
  const SlotClass slot_class = ClassOf(allocator, slot_bytes);
  std::set<uint64_t> offsets;
  std::vector<SlotRef> slots = AllocateAll(allocator, slot_class);
  for (SlotRef slot : slots) offsets.insert(allocator.PlaceOf(slot).offset.value);
  CHECK(slots.size() == kSlots);
  CHECK(offsets.size() == kSlots);
  CHECK(*offsets.rbegin() == (slot_bytes * (kSlots - 1)).value);
  CHECK(allocator.live_bytes() == allocator.capacity());
  allocator.CheckInvariants();

  allocator.Free(slots[123]);
  CHECK(allocator.free_slabs() == 1);
  const auto again = allocator.Allocate(slot_class);
  REQUIRE(again.has_value());
  CHECK(again->index == slots[123].index);
  CHECK(again->generation != slots[123].generation);
  CHECK_FALSE(allocator.Allocate(slot_class).has_value());
}

TEST_CASE("SlotAllocator leaves the tails of regions and slabs alone") {
  // Region 0 has 2 slabs and a tail, region 1 none at all, region 2 one slab. A slab holds 10 slots of 100 KiB and a tail.
  SlotAllocator allocator = Make({.regions = {MiB(2) + KiB(1020), KiB(1020), MiB(1)}, .slab_bytes = MiB(1)});
  CHECK(allocator.capacity() == MiB(3));
  CHECK(allocator.free_slabs() == 3);
  const std::vector<SlotRef> slots = AllocateAll(allocator, ClassOf(allocator, KiB(100)), 1);
  CHECK(slots.size() == 30);
  for (SlotRef slot : slots) {
    const SlotAllocator::Place place = allocator.PlaceOf(slot);
    CHECK(place.region != 1);
    CHECK(place.length == KiB(100));
    CHECK(place.offset.value + place.length.value <= (place.region == 0 ? MiB(2) : MiB(1)).value);
    CHECK(place.offset.value / MiB(1).value == (place.offset.value + place.length.value - 1) / MiB(1).value);
  }
  allocator.CheckInvariants();
}

TEST_CASE("SlotAllocator prefers the near region also over slabs in use elsewhere") {
  SlotAllocator allocator = Make({.regions = {MiB(1), MiB(1)}, .slab_bytes = MiB(1)});
  const SlotClass half = ClassOf(allocator, KiB(512));
  std::vector<uint32_t> regions;
  for (uint32_t near : {0u, 1u, 1u, 1u}) regions.push_back(allocator.PlaceOf(*allocator.Allocate(half, near)).region);
  CHECK(regions == std::vector<uint32_t>{0, 1, 1, 0});  // the last finds region 1 full
}

TEST_CASE("SlotAllocator recognises stale slots for ever, also after the slab changed its class") {
  SlotAllocator allocator = Make({.regions = {MiB(1)}, .slab_bytes = MiB(1)});
  const SlotClass large = ClassOf(allocator, KiB(512));
  const SlotClass small = ClassOf(allocator, KiB(4));
  CHECK_FALSE(allocator.IsLive(SlotRef{}));
  CHECK_FALSE(allocator.IsLive(SlotRef{.index = 7, .generation = 1}));
  CHECK_FALSE(allocator.IsLive(SlotRef{.index = ~0u, .generation = 1}));

  std::vector<SlotRef> stale;
  for (int round = 0; round < 5; ++round) {
    for (SlotClass slot_class : {large, small}) {
      const std::vector<SlotRef> slots = AllocateAll(allocator, slot_class);
      REQUIRE(slots.size() == (slot_class == large ? 2 : 256));
      for (SlotRef slot : slots) REQUIRE(allocator.IsLive(slot));
      for (SlotRef slot : stale) REQUIRE_FALSE(allocator.IsLive(slot));
      for (SlotRef slot : slots) allocator.Free(slot);
      stale.insert(stale.end(), slots.begin(), slots.end());
      allocator.CheckInvariants();
    }
  }
  const std::set<uint64_t> distinct = [&] {
    std::set<uint64_t> packed;
    for (SlotRef slot : stale) packed.insert(slot.Pack());
    return packed;
  }();
  CHECK(distinct.size() == stale.size());
  CHECK(distinct.count(0) == 0);
}

TEST_CASE("SlotAllocator moves an emptied slab to another class at once") {
  SlotAllocator allocator = Make({.regions = {MiB(2)}, .slab_bytes = MiB(1)});
  const SlotClass a = ClassOf(allocator, KiB(256));
  const SlotClass b = ClassOf(allocator, MiB(1));
  std::vector<SlotRef> slots = AllocateAll(allocator, a);
  REQUIRE(slots.size() == 8);
  CHECK_FALSE(allocator.Allocate(b).has_value());
  for (int i = 0; i < 3; ++i) allocator.Free(slots[i]);
  CHECK_FALSE(allocator.Allocate(b).has_value());  // one slot still holds the slab
  allocator.Free(slots[3]);
  CHECK(allocator.free_slabs() == 1);
  CHECK(allocator.Allocate(b).has_value());
  CHECK_FALSE(allocator.Allocate(a).has_value());
  allocator.CheckInvariants();
}

TEST_CASE("SlotAllocator fills fuller slabs first so that emptier ones empty out") {
  SlotAllocator allocator = Make({.regions = {MiB(2)}, .slab_bytes = MiB(1)});
  const SlotClass slot_class = ClassOf(allocator, KiB(64));  // 16 a slab
  std::vector<SlotRef> slots = AllocateAll(allocator, slot_class);
  const auto slab_of = [&](SlotRef slot) { return allocator.PlaceOf(slot).offset.value / MiB(1).value; };
  for (int i = 16; i < 20; ++i) allocator.Free(slots[i]);  // slab 1 keeps 12 of 16
  for (int i = 0; i < 12; ++i) allocator.Free(slots[i]);   // slab 0 keeps 4 of 16
  REQUIRE(slab_of(slots[12]) == 0);
  for (int i = 0; i < 4; ++i) CHECK(slab_of(*allocator.Allocate(slot_class)) == 1);
  for (int i = 12; i < 16; ++i) allocator.Free(slots[i]);
  CHECK(allocator.free_slabs() == 1);
}

// Random operations against a model that knows nothing of lists, indexes and bits: which extents are live.
class Model {
 public:
  Model(SlotAllocator::Options options, uint64_t seed) : options_(options), allocator_(Make(options)), random_(seed) {
    for (Bytes size : {KiB(4), KiB(12), KiB(64), KiB(100), KiB(516), MiB(1)}) {
      classes_.push_back({.id = ClassOf(allocator_, size), .size = size});
    }
  }

  void Step() {
    const uint64_t dice = random_() % 1000;
    if (dice < 500 + phase_) {
      Allocate();
    } else if (dice < 990) {
      FreeOne(random_() % std::max<size_t>(live_.size(), 1));
    } else if (dice < 993) {
      FreeClass(classes_[random_() % classes_.size()].size);
    } else if (dice < 995) {
      Empty();
    } else {
      phase_ = random_() % 200;  // between shrinking and growing
    }
    CHECK_FALSE((!stale_.empty() && allocator_.IsLive(stale_[random_() % stale_.size()])));
    REQUIRE(allocator_.live_slots() == live_.size());
    REQUIRE(allocator_.live_bytes() == live_bytes_);
    REQUIRE(allocator_.free_slabs() == FreeSlabs());
  }
  void CheckAll() {
    allocator_.CheckInvariants();
    // One assertion for all: there are millions, and each costs ThreadSanitizer tens of microseconds.
    REQUIRE(std::all_of(live_.begin(), live_.end(), [&](const Live& live) {
      if (!allocator_.IsLive(live.slot)) return false;
      const SlotAllocator::Place place = allocator_.PlaceOf(live.slot);
      return place.region == live.region && place.offset.value == live.offset && place.length == live.size;
    }));
    REQUIRE(std::none_of(stale_.begin(), stale_.end(), [&](SlotRef slot) { return allocator_.IsLive(slot); }));
  }
  uint64_t emptied() const { return emptied_; }
  void FreeAll() {
    while (!live_.empty()) FreeOne(live_.size() - 1);
    REQUIRE(allocator_.free_slabs() * options_.slab_bytes == allocator_.capacity());
  }

 private:
  struct Class {
    SlotClass id;
    Bytes size;
  };
  struct Live {
    SlotRef slot;
    uint32_t region;
    uint64_t offset;
    Bytes size;
  };
  struct SlabUse {
    Bytes size;
    uint64_t live = 0;
  };
  using SlabName = std::pair<uint32_t, uint64_t>;  // region, number in it

  uint64_t Slabs(uint32_t region) const { return options_.regions[region] / options_.slab_bytes; }
  uint64_t FreeSlabs() const { return allocator_.capacity() / options_.slab_bytes - slabs_.size(); }
  // Whether a slot of `size` finds room in `region`.
  bool HasRoom(uint32_t region, Bytes size) const {
    uint64_t used = 0;
    for (const auto& [name, slab] : slabs_) {
      if (name.first != region) continue;
      ++used;
      if (slab.size == size && slab.live < options_.slab_bytes / size) return true;
    }
    return used < Slabs(region);
  }

  void Allocate() {
    const Class& c = classes_[random_() % classes_.size()];
    const uint32_t near = static_cast<uint32_t>(random_() % options_.regions.size());
    bool room = false;
    for (uint32_t r = 0; r < options_.regions.size(); ++r) room = room || HasRoom(r, c.size);
    const auto slot = allocator_.Allocate(c.id, near);
    REQUIRE(slot.has_value() == room);
    if (!slot) return;
    if (HasRoom(near, c.size)) REQUIRE(allocator_.PlaceOf(*slot).region == near);
    Given(*slot, c.size);
  }

  // What is live in some slab moves elsewhere.
  void Empty() {
    std::map<uint64_t, uint64_t> free_places;  // by size, in slabs that have some live ones
    for (const auto& [name, slab] : slabs_) free_places[slab.size.value] += options_.slab_bytes / slab.size - slab.live;
    const bool can = std::any_of(free_places.begin(), free_places.end(),
                                 [&](const auto& c) { return c.second >= options_.slab_bytes.value / c.first; });
    const std::optional<uint32_t> slab = allocator_.Vacatable();
    REQUIRE(slab.has_value() == can);
    if (!can) return;
    const uint64_t before = allocator_.free_slabs();
    allocator_.Close(*slab);
    for (uint32_t place = 0; place < allocator_.places(*slab); ++place) {
      const std::optional<SlotRef> from = allocator_.LiveAt(*slab, place);
      if (!from) continue;
      const auto live = std::find_if(live_.begin(), live_.end(), [&](const Live& l) { return l.slot == *from; });
      REQUIRE(live != live_.end());
      allocator_.SetOwner(*from, place);
      const std::optional<SlotRef> to = allocator_.AllocateBeside(*slab);
      REQUIRE(to.has_value());
      CHECK(allocator_.OwnerOf(*from) == place);
      CHECK(allocator_.OwnerOf(*to) == SlotAllocator::kNobody);
      const auto at = static_cast<size_t>(live - live_.begin());
      const SlotAllocator::Place before_free = allocator_.PlaceOf(*from);
      Given(*to, live->size);
      FreeOne(at);
      // Who copies out of it may look where it was, though it went meanwhile.
      REQUIRE(allocator_.PlaceOf(*from).offset == before_free.offset);
    }
    allocator_.CheckInvariants();
    REQUIRE(allocator_.IsEmpty(*slab));
    REQUIRE(allocator_.free_slabs() == before);
    allocator_.Open(*slab, SlotAllocator::Opened::kFirst);
    REQUIRE(allocator_.free_slabs() == before + 1);
    ++emptied_;
  }

  void Given(SlotRef slot, Bytes size) {
    REQUIRE(slot.generation != 0);
    const SlotAllocator::Place place = allocator_.PlaceOf(slot);
    REQUIRE(place.length == size);
    const SlabName name(place.region, place.offset.value / options_.slab_bytes.value);
    const uint64_t in_slab = place.offset.value % options_.slab_bytes.value;
    REQUIRE(name.second < Slabs(place.region));
    REQUIRE(in_slab + size.value <= options_.slab_bytes.value);
    // No overlap: neighbours in the order of offsets end before it and start after it.
    auto& extents = extents_[place.region];
    auto next = extents.lower_bound(place.offset.value);
    if (next != extents.end()) REQUIRE(place.offset.value + size.value <= next->first);
    if (next != extents.begin()) REQUIRE(std::prev(next)->second <= place.offset.value);
    extents.emplace(place.offset.value, place.offset.value + size.value);
    auto [slab, fresh] = slabs_.try_emplace(name, SlabUse{.size = size});
    REQUIRE(slab->second.size == size);
    ++slab->second.live;
    uint32_t& last = last_generation_[slot.index];
    REQUIRE(slot.generation > last);
    last = slot.generation;
    live_.push_back({slot, place.region, place.offset.value, size});
    live_bytes_ += size;
  }

  void FreeOne(size_t at) {
    if (at >= live_.size()) return;
    const Live live = live_[at];
    live_[at] = live_.back();
    live_.pop_back();
    allocator_.Free(live.slot);
    live_bytes_ -= live.size;
    extents_[live.region].erase(live.offset);
    const auto slab = slabs_.find(SlabName(live.region, live.offset / options_.slab_bytes.value));
    if (--slab->second.live == 0) slabs_.erase(slab);
    if (stale_.size() < 10'000) {
      stale_.push_back(live.slot);
    } else {
      stale_[random_() % stale_.size()] = live.slot;
    }
  }

  void FreeClass(Bytes size) {
    for (size_t i = live_.size(); i-- > 0;) {
      if (live_[i].size == size) FreeOne(i);
    }
  }

  SlotAllocator::Options options_;
  SlotAllocator allocator_;
  std::mt19937_64 random_;
  uint64_t phase_ = 100;
  uint64_t emptied_ = 0;
  std::vector<Class> classes_;
  std::vector<Live> live_;
  std::vector<SlotRef> stale_;
  Bytes live_bytes_{};
  std::map<uint32_t, std::map<uint64_t, uint64_t>> extents_;  // per region: start -> end
  std::map<SlabName, SlabUse> slabs_;                         // slabs with a live slot
  std::map<uint32_t, uint32_t> last_generation_;              // per index
};

TEST_CASE("SlotAllocator agrees with a model over random operations") {
  const char* given = std::getenv("KVIST_TEST_SEED");  // replays one seed
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  for (uint64_t seed = first; seed < first + (given != nullptr ? 1 : 8); ++seed) {
    std::printf("slot_allocator_test: KVIST_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    CAPTURE(seed);
    Model model({.regions = {MiB(5) + KiB(300), KiB(900), MiB(3)}, .slab_bytes = MiB(1)}, seed);
    for (int step = 0; step < 20'000; ++step) {
      model.Step();
      if (step % 500 == 0) model.CheckAll();
    }
    CHECK(model.emptied() > 0);
    model.FreeAll();
    model.CheckAll();
  }
}

TEST_CASE("SlotAllocator retakes what another had live, in the same places, and goes on like it") {
  const SlotAllocator::Options options{.regions = {MiB(3), MiB(4)}, .slab_bytes = MiB(1)};
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    SlotAllocator before = SlotAllocator::Create(options).value();
    const Bytes sizes[] = {KiB(64), KiB(100), KiB(512)};
    struct Kept {
      SlotRef slot;
      Bytes size;
      ByteOffset offset;
    };
    std::map<uint32_t, Kept> live;
    for (int step = 0; step < 200; ++step) {
      const Bytes size = sizes[random() % 3];
      if (live.size() > 20 && random() % 2 == 0) {
        const auto freed = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        before.Free(freed->second.slot);
        live.erase(freed);
      } else if (const auto slot = before.Allocate(before.ClassFor(size).value(), random() % 2)) {
        live[slot->index] = {*slot, size, before.PlaceOf(*slot).offset};
      }
    }
    SlotAllocator after = SlotAllocator::Create(options).value();
    for (const auto& [index, kept] : live) {
      const std::optional<SlotRef> slot = after.Retake(after.ClassFor(kept.size).value(), index);
      REQUIRE(slot.has_value());
      CHECK(slot->index == index);
      CHECK(after.PlaceOf(*slot).offset == kept.offset);
      CHECK(!after.Retake(after.ClassFor(kept.size).value(), index).has_value());  // once
      const Bytes other = kept.size == KiB(64) ? KiB(100) : KiB(64);
      CHECK(!after.Retake(after.ClassFor(other).value(), index).has_value());
    }
    after.CheckInvariants();
    CHECK(after.live_slots() == before.live_slots());
    CHECK(after.free_slabs() == before.free_slabs());
    for (const Bytes size : sizes) {
      while (after.Allocate(after.ClassFor(size).value())) continue;
    }
    after.CheckInvariants();
    CHECK(!after.Retake(after.ClassFor(KiB(64)).value(), UINT32_MAX).has_value());
  }
}

}  // namespace
}  // namespace kvist::pool
