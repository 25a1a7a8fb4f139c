// Slots near the engine: each rank's shards in the region of the pool that is nearest to its memory, while that has room.
#include <catch2/catch.hpp>

#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

CoreFixture TwoRegions(uint32_t slabs) {
  CoreFixture::Options options;
  options.slabs = slabs;  // of 16 slots of 4 KiB
  options.regions = 2;
  options.core.private_share = 0.5;
  return CoreFixture(options);
}

// The regions in which a copy's slots lie.
std::vector<uint32_t> RegionsOf(const CoreFixture& f, const CopyStarted& copy) {
  std::vector<uint32_t> regions;
  for (const SlotRef slot : copy.slots) regions.push_back(f.slots->PlaceOf(slot).region);
  return regions;
}
using Regions = std::vector<uint32_t>;

TEST_CASE("Core stores each rank's shards near that rank, whichever rank comes first") {
  CoreFixture f = TwoRegions(1);
  const SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(4)});
  const SessionId rank0 = f.Worker("engine", space, 0, 1), rank1 = f.Worker("engine", space, 1, 0);
  CHECK(RegionsOf(f, *f.Store(rank0, KeysOf({1}))) == Regions{1});
  CHECK(RegionsOf(f, *f.Store(rank1, KeysOf({1}))) == Regions{0});
  CHECK(RegionsOf(f, *f.Store(rank1, KeysOf({2}))) == Regions{0});
  CHECK(RegionsOf(f, *f.Store(rank0, KeysOf({2}))) == Regions{1});
}

TEST_CASE("Core stores what ranks share near the first of them") {
  CoreFixture f = TwoRegions(1);
  SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(4)});
  space.groups[0].ranks_per_shard = 2;
  std::vector<SessionId> ranks;
  for (uint16_t rank = 0; rank < 4; ++rank) ranks.push_back(f.Worker("engine", space, rank, rank / 2));
  CHECK(RegionsOf(f, *f.Store(ranks[1], KeysOf({1}))) == Regions{0});
  CHECK(RegionsOf(f, *f.Store(ranks[3], KeysOf({1}))) == Regions{1});
}

TEST_CASE("Core stores near the engine that stores, of several that share a space") {
  CoreFixture f = TwoRegions(1);
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId far = f.Worker("one", space, 0, 1), near = f.Worker("two", space, 0, 0);
  CHECK(RegionsOf(f, *f.Store(far, KeysOf({1}))) == Regions{1});
  CHECK(RegionsOf(f, *f.Store(near, KeysOf({2}))) == Regions{0});
  // What comes again says anew where it lies.
  f.Do(SessionClosed{far});
  const SessionId moved = f.Worker("one", space, 0, 0);
  CHECK(RegionsOf(f, *f.Store(moved, KeysOf({3}))) == Regions{0});
}

TEST_CASE("Core evicts nothing near an engine while there is room elsewhere") {
  CoreFixture f = TwoRegions(1);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}), 0, 1);
  Regions regions;
  for (uint64_t n = 0; n < 32; ++n) {
    const CopyStarted store = *f.Store(worker, KeysOf({n}));
    regions.push_back(RegionsOf(f, store).at(0));
    f.Finish(store.op);
  }
  CHECK(f.core->status().chunks == 32);
  Regions expected(16, 1);
  expected.resize(32, 0);
  CHECK(regions == expected);
  CHECK(f.Store(worker, KeysOf({99})).has_value());  // by eviction
}

TEST_CASE("Core allocates private slots near their engine") {
  CoreFixture f = TwoRegions(1);
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId worker = f.Worker("engine", space, 0, 1);
  const Answered allocated = std::get<Answered>(f.Do(AllocateAsked{worker, RequestTag{1}, GroupId{0}, 2}).at(0));
  const Effects effects =
      f.Do(SwapAsked{worker, RequestTag{2}, Direction::kStore, allocated.allocation, GroupId{0}, 0, 2, 0, 1});
  CHECK(RegionsOf(f, std::get<CopyStarted>(effects.at(0))) == Regions{1, 1});
}

TEST_CASE("Core reads from disk into slots near the engine that came last") {
  CoreFixture::Options options;
  options.regions = 2;
  options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  f.Do(DiskWritable{true});
  f.Do(DiskTold{});
  REQUIRE(f.Open(1, "engine", Role::kWorker, 0, space, 1).ok());
  f.Do(ChunksFound{*f.core->FindSpace(space.digest), {{GroupId{}, KeyOf(1), std::nullopt, 0, {{1, 1}}}}});
  const Effects effects = f.Do(LookupAsked{SessionId{1}, RequestTag{1}, KeysOf({1}), absl::Seconds(1)});
  for (const Effect& effect : effects) {
    if (const auto* read = std::get_if<ReadStarted>(&effect)) {
      CHECK(f.slots->PlaceOf(read->slots.at(0)).region == 1);
      return;
    }
  }
  FAIL("nothing was read");
}

}  // namespace
}  // namespace kvist::core
