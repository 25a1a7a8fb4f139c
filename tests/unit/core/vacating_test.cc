#include "daemon/core/vacating.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

// A full pool of slots of 4 KiB, 16 in a slab, in whose slabs chains of eight chunks lie all over each other as they do after a while; and
// an engine with slots of 20 KiB, three in a slab, that has none yet.
struct UsedPool {
  static constexpr uint64_t kSlabs = 64;
  static constexpr uint64_t kChains = 256;  // of which half fit

  UsedPool() {
    std::mt19937_64 random{1};
    for (int turn = 0; turn < 3000; ++turn) {
      const std::vector<ChunkKey> keys = Chain(random() % 2 == 0 ? random() % kChains : random() % (kChains / 4));
      const uint32_t hit = f.Lookup(small, keys).chunks;
      if (hit < keys.size())
        f.Keep(small, {keys.begin() + hit, keys.end()}, hit > 0 ? std::optional(keys[hit - 1]) : std::nullopt);
    }
    REQUIRE(f.slots->free_slabs() == 0);
    REQUIRE(f.slots->live_slots() == 16 * kSlabs);
    evictions_before = f.core->status().evictions;
  }
  static CoreFixture::Options Options() {
    CoreFixture::Options options;
    options.slabs = kSlabs;
    options.core.eviction = Eviction::kLru;
    options.core.pin_share = 1;
    return options;
  }
  static std::vector<ChunkKey> Chain(uint64_t chain) {
    std::vector<ChunkKey> keys;
    for (uint64_t n = 0; n < 8; ++n) keys.push_back(KeyOf(chain * 8 + n));
    return keys;
  }
  // The chains that are whole.
  std::vector<uint64_t> Whole() {
    std::vector<uint64_t> whole;
    for (uint64_t chain = 0; chain < kChains; ++chain) {
      if (f.Lookup(small, Chain(chain)).chunks == 8) whole.push_back(chain);
    }
    return whole;
  }
  uint32_t KeepLarge(uint32_t count = 1) {
    std::vector<ChunkKey> keys;
    for (uint32_t n = 0; n < count; ++n) keys.push_back(KeyOf(1'000'000 + next_large++));
    return f.Keep(large, keys);
  }
  uint64_t evictions() const { return f.core->status().evictions - evictions_before; }
  void Rest() {
    for (int tick = 0; tick < 50; ++tick) f.PassTime(absl::Milliseconds(1));
  }

  CoreFixture f{Options()};
  SessionId small = f.Worker("a", SpaceNamed("small", {KiB(4)}, "a")),
            large = f.Worker("b", SpaceNamed("large", {KiB(20)}, "b"));
  uint64_t evictions_before = 0;
  uint64_t next_large = 0;
};

TEST_CASE("Slots of another size cost a slab's worth of the least valuable chunks, wherever those lie") {
  UsedPool pool;
  CHECK(pool.KeepLarge() == 0);  // it makes room for those that come next
  CHECK(pool.evictions() == 16);
  for (int n = 0; n < 3; ++n) CHECK(pool.KeepLarge() == 1);
  CHECK(pool.evictions() == 16);
  CHECK(pool.f.slots->live_slots() == 16 * UsedPool::kSlabs - 16 + 3);
  CHECK(pool.f.core->status().sealed == 16 * UsedPool::kSlabs - 16 + 3);
  CHECK(pool.f.core->status().slots_moved > 0);
}

TEST_CASE("A store of many chunks of another size finds room for all of them the next time") {
  UsedPool pool;
  CHECK(pool.KeepLarge(30) == 0);
  pool.Rest();
  CHECK(pool.evictions() == 160);  // ten slabs' worth
  CHECK(pool.KeepLarge(30) == 30);
  CHECK(pool.evictions() == 160);
}

TEST_CASE("A slab that was emptied for somebody who doesn't come is anybody's after a while") {
  UsedPool pool;
  CHECK(pool.KeepLarge() == 0);
  CHECK(pool.f.slots->free_slabs() == 0);
  const SessionId third = pool.f.Worker("c", SpaceNamed("third", {KiB(32)}, "c"));
  CHECK(pool.f.Keep(third, {KeyOf(1)}) == 0);
  pool.f.PassTime(Vacating::kPatience + absl::Milliseconds(1));
  CHECK(pool.f.Keep(third, {KeyOf(1)}) == 1);
}

TEST_CASE("What a load reads keeps its place until that has ended, wherever its chain goes on") {
  UsedPool pool;
  // Each of these loads holds only the deepest chunk of its chain.
  std::vector<CopyStarted> loads;
  for (const uint64_t chain : pool.Whole()) {
    if (chain % 2 == 0) continue;  // those are what can be evicted
    const LookupAnswered hit = pool.f.Lookup(pool.small, UsedPool::Chain(chain), absl::Seconds(10));
    loads.push_back(*pool.f.Load(pool.small, hit.lease, 0, 8));
    pool.f.Do(ReleaseAsked{pool.small, hit.lease});
  }
  REQUIRE(loads.size() > 32);
  CHECK(pool.KeepLarge() == 0);
  pool.Rest();
  REQUIRE(pool.f.core->status().slots_moved > 0);
  CHECK(pool.KeepLarge() == 0);
  for (const CopyStarted& load : loads) {
    for (const SlotRef slot : load.slots) REQUIRE(pool.f.slots->IsLive(slot));
  }
  for (size_t n = 0; n + 1 < loads.size(); ++n) pool.f.Finish(loads[n].op);
  CHECK(pool.KeepLarge() == 0);
  pool.f.Finish(loads.back().op);
  pool.Rest();
  // The ends of the chains had to stay, so another slab may have to be emptied.
  CHECK(pool.KeepLarge() + pool.KeepLarge() > 0);
}

TEST_CASE("A load that never ends keeps one slab from being emptied, and nobody from storing") {
  UsedPool pool;
  const LookupAnswered hit = pool.f.Lookup(pool.small, UsedPool::Chain(pool.Whole().back()), absl::Seconds(10));
  REQUIRE(pool.f.Load(pool.small, hit.lease, 0, 8).has_value());
  CHECK(pool.KeepLarge() == 0);
  pool.f.PassTime(Vacating::kPatience + absl::Milliseconds(1));
  // Then by evicting until a slab happens to be empty.
  uint32_t kept = 0;
  for (int n = 0; n < 40; ++n) kept += pool.KeepLarge();
  CHECK(kept > 0);
}

TEST_CASE("What goes while it is being copied is taken by nobody, and what hangs on it neither") {
  UsedPool pool;
  pool.f.hold_slots_copied = true;
  CHECK(pool.KeepLarge() == 0);
  REQUIRE(pool.f.slots_copied == 1);
  SECTION("cleared") {
    pool.f.Do(ClearAsked{JobId{1}});
    pool.Rest();
  }
  SECTION("evicted by stores of its own size") {
    for (uint64_t chain = 1000; chain < 1200; ++chain) pool.f.Keep(pool.small, UsedPool::Chain(chain));
  }
  SECTION("used by copies") {
    for (const uint64_t chain : pool.Whole()) {
      const LookupAnswered hit = pool.f.Lookup(pool.small, UsedPool::Chain(chain), absl::Seconds(10));
      for (uint32_t n = 0; n < 8; ++n) pool.f.Load(pool.small, hit.lease, n, 1);
    }
  }
  const uint64_t moved = pool.f.core->status().slots_moved;
  pool.f.hold_slots_copied = false;
  pool.f.slots_copied = 0;
  pool.f.Do(SlotsCopied{});
  pool.Rest();
  CHECK(pool.f.core->status().slots_moved >= moved);
  pool.f.slots->CheckInvariants();
}

// Without moving, each of these would keep a slab from everybody else.
TEST_CASE("What can't be evicted is moved together, so that it keeps no more slabs than it fills") {
  UsedPool pool;
  uint32_t pinned = 0;
  for (const uint64_t chain : pool.Whole()) {
    const std::vector<ChunkKey> keys = UsedPool::Chain(chain);
    if (pinned == 32) break;
    REQUIRE(std::get<Answered>(pool.f.Do(PinAsked{pool.small, RequestTag{1}, keys}).at(0)).status.ok());
    ++pinned;
  }
  REQUIRE(pinned == 32);  // 256 slots, or 16 slabs, of the 64 in which they lie
  for (int n = 0; n < 100; ++n, pool.Rest()) pool.KeepLarge(16);
  CHECK(pool.f.core->pins().size() == 32);
  // b uses as much of its quota as a, at least: half of the pool.
  CHECK(pool.f.slots->live_bytes() > KiB(64) * 55);
  const CoreStatus status = pool.f.core->status();
  CHECK(status.tenants[1].used >= KiB(64) * (UsedPool::kSlabs / 2 - 2));
}

TEST_CASE("Who asks for many slots of another size gets no more for that than its quota, and of its own first") {
  UsedPool pool;
  SECTION("a quota of a slab") {
    pool.f.Do(QuotaSet{"b", KiB(64)});
    CHECK(pool.KeepLarge(1000) == 0);
    pool.Rest();
    CHECK(pool.evictions() == 16);
  }
  SECTION("and nobody loses what is within its quota for that") {
    // A slab is more than what b may still have: what comes for it makes it no one who has too much.
    pool.f.Do(QuotaSet{"b", KiB(60)});
    pool.f.Do(QuotaSet{"absent", MiB(2)});  // so that a has too much
    const SessionId other = pool.f.Worker("b2", SpaceNamed("other", {KiB(4)}, "b"));
    for (uint64_t n = 0; n < 10; ++n) REQUIRE(pool.f.Keep(other, {KeyOf(4'000'000 + n)}) == 1);
    CHECK(pool.KeepLarge() == 0);
    for (uint64_t chain = 1000; chain < 1100; ++chain) pool.f.Keep(pool.small, UsedPool::Chain(chain));
    uint32_t left = 0;
    for (uint64_t n = 0; n < 10; ++n) left += pool.f.Lookup(other, {KeyOf(4'000'000 + n)}).chunks;
    CHECK(left == 10);
  }
  SECTION("no quota: who has most gives, also to itself") {
    const SessionId quiet = pool.f.Worker("q", SpaceNamed("quiet", {KiB(4)}, "quiet"));
    for (uint64_t n = 0; n < 48; ++n) REQUIRE(pool.f.Keep(quiet, {KeyOf(2'000'000 + n)}) == 1);
    const SessionId more = pool.f.Worker("a2", SpaceNamed("larger", {KiB(20)}, "a"));
    for (uint64_t round = 0; round < 20; ++round) {
      std::vector<ChunkKey> keys;
      for (uint64_t n = 0; n < 30; ++n) keys.push_back(KeyOf(3'000'000 + 100 * round + n));
      pool.f.Keep(more, keys);
      pool.Rest();
    }
    uint32_t left = 0;
    for (uint64_t n = 0; n < 48; ++n) left += pool.f.Lookup(quiet, {KeyOf(2'000'000 + n)}).chunks;
    CHECK(left == 48);
  }
}

TEST_CASE("Private slots can't be moved: it isn't tried for ever, and what can go goes as before") {
  CoreFixture::Options options = UsedPool::Options();
  options.slabs = 2;
  options.core.private_share = 1;
  CoreFixture f(options);
  const SessionId a = f.Worker("a", SpaceNamed("small", {KiB(4)})), b = f.Worker("b", SpaceNamed("large", {KiB(64)}));
  const auto allocate = [&](uint32_t chunks) {
    return std::get<Answered>(f.Do(AllocateAsked{a, RequestTag{1}, GroupId{0}, chunks}).at(0)).allocation;
  };
  std::vector<AllocationId> allocations;
  for (int n = 0; n < 32; ++n) allocations.push_back(allocate(1));
  REQUIRE(f.slots->live_slots() == 32);
  for (size_t n = 0; n < allocations.size(); ++n) {
    if (n % 16 != 3) f.Do(FreeAsked{a, allocations[n]});
  }
  f.PassTime(absl::Milliseconds(1));
  REQUIRE(f.slots->live_slots() == 2);  // one in each slab
  for (uint64_t n = 0; n < 10; ++n) CHECK(f.Keep(b, {KeyOf(n)}) == 0);
  int ticks = 0;
  for (; f.core->has_work() && ticks < 100; ++ticks) f.PassTime(absl::Milliseconds(1));
  CHECK(ticks < 100);
  // Where something could go, too, it does, as often as it is asked.
  for (uint64_t n = 100; n < 130; ++n) REQUIRE(f.Keep(a, {KeyOf(n)}) == 1);
  f.Do(FreeAsked{a, allocations[3]});
  uint32_t kept = 0;
  for (uint64_t n = 200; n < 240; ++n) kept += f.Keep(b, {KeyOf(n)});
  CHECK(kept > 0);
}

TEST_CASE("Half a store stays where it is, and the next slab is tried") {
  CoreFixture::Options options = UsedPool::Options();
  options.slabs = 4;
  CoreFixture f(options);
  const SessionId a = f.Worker("a", SpaceNamed("small", {KiB(4)})), b = f.Worker("b", SpaceNamed("large", {KiB(64)}));
  for (uint64_t n = 0; n < 63; ++n) REQUIRE(f.Keep(a, {KeyOf(n)}) == 1);
  const std::optional<CopyStarted> half = f.Store(a, {KeyOf(63)});
  REQUIRE(half.has_value());
  uint32_t kept = 0;
  for (uint64_t n = 100; n < 120; ++n) kept += f.Keep(b, {KeyOf(n)});
  CHECK(kept >= 3);
  CHECK(f.slots->IsLive(half->slots[0]));
  f.Finish(half->op);
  CHECK(f.Lookup(a, {KeyOf(63)}).chunks == 1);
}

}  // namespace
}  // namespace kvist::core
