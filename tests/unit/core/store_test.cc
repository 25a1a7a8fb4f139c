#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

const std::vector<Bytes> kTwoRanks{KiB(4), KiB(4)};

TEST_CASE("Core shows a chunk when all ranks have stored it, in whatever order") {
  CoreFixture::Options options;
  options.slabs = 2;  // one for each slot size
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(8), KiB(4)});
  const SessionId ranks[] = {f.Worker("engine", space, 0), f.Worker("engine", space, 1), f.Worker("engine", space, 2)};
  const CopyStarted two = *f.Store(ranks[2], KeysOf({1}));
  const CopyStarted zero = *f.Store(ranks[0], KeysOf({1}));
  REQUIRE(f.slots->live_slots() == 3);  // all ranks' slots from the first store on
  f.Finish(two.op);
  const CopyStarted one = *f.Store(ranks[1], KeysOf({1}));
  REQUIRE(f.slots->live_slots() == 3);
  f.Finish(zero.op);
  REQUIRE(f.Lookup(ranks[0], KeysOf({1})).chunks == 0);
  REQUIRE(f.slots->PlaceOf(one.slots[0]).length == KiB(8));
  f.Finish(one.op);
  REQUIRE(f.Lookup(ranks[0], KeysOf({1})).chunks == 1);
  REQUIRE(f.core->status().filling == 0);
}

TEST_CASE("Core lets the first of two instances win, and tells the second") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId one = f.Worker("one", space), two = f.Worker("two", space);
  const CopyStarted first = *f.Store(one, KeysOf({1}));
  const std::optional<CopyStarted> second = f.Store(two, KeysOf({1, 2}));
  REQUIRE(second->chunk_of == std::vector<uint32_t>{1});
  const OpEnded ended = std::get<OpEnded>(f.Finish(second->op).at(0));
  REQUIRE(ended.copied == 1);
  REQUIRE(ended.skipped == 1);
  REQUIRE(f.Lookup(two, KeysOf({1, 2})).chunks == 0);  // its prefix is still being stored
  f.Finish(first.op);
  REQUIRE(f.Lookup(two, KeysOf({1, 2})).chunks == 2);
}

TEST_CASE("Core never hits across spaces or tenants") {
  CoreFixture f;
  const SessionId green = f.Worker("engine", SpaceNamed("space", {KiB(4)}, "green"));
  const SessionId blue = f.Worker("engine", SpaceNamed("space", {KiB(4)}, "blue"));
  f.Keep(green, KeysOf({1}));
  REQUIRE(f.Lookup(green, KeysOf({1})).chunks == 1);
  REQUIRE(f.Lookup(blue, KeysOf({1})).chunks == 0);
}

TEST_CASE("Core keeps the prefix's place when its chunk's store fails, and takes it again") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  const CopyStarted bad = *f.Store(worker, KeysOf({1}));
  REQUIRE(f.Keep(worker, KeysOf({2}), KeyOf(1)) == 1);
  f.Finish(bad.op, absl::DataLossError("gone"));
  REQUIRE(f.Lookup(worker, KeysOf({1, 2})).chunks == 0);
  REQUIRE(f.slots->live_slots() == 1);
  REQUIRE(f.Keep(worker, KeysOf({1})) == 1);
  REQUIRE(f.Lookup(worker, KeysOf({1, 2})).chunks == 2);
}

TEST_CASE("Core frees a failed store once no copy of any rank runs") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId zero = f.Worker("engine", space, 0), one = f.Worker("engine", space, 1);
  const CopyStarted a = *f.Store(zero, KeysOf({1})), b = *f.Store(one, KeysOf({1}));
  f.Finish(a.op, absl::DataLossError("gone"));
  REQUIRE(f.slots->live_slots() == 2);
  REQUIRE_FALSE(f.Store(zero, KeysOf({1})).has_value());  // not beside the one that still writes
  f.Finish(b.op);
  REQUIRE(f.slots->live_slots() == 0);
  REQUIRE(f.core->status().chunks == 0);
}

TEST_CASE("Core stores nothing without its parent, and nothing under a parent that isn't the key's") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  REQUIRE_FALSE(f.Store(worker, KeysOf({2}), KeyOf(1)).has_value());
  REQUIRE(f.ended->refused == 1);
  f.Keep(worker, KeysOf({1, 2, 3}));
  f.Keep(worker, KeysOf({10}));
  SECTION("a key that hangs elsewhere") {
    REQUIRE_FALSE(f.Store(worker, KeysOf({10, 2, 11})).has_value());
    REQUIRE(f.ended->skipped == 1);
    REQUIRE(f.ended->refused == 2);
    REQUIRE(f.Lookup(worker, KeysOf({10, 2})).chunks == 1);
  }
  SECTION("a key in the middle as a root") {
    REQUIRE_FALSE(f.Store(worker, KeysOf({2})).has_value());
    REQUIRE(f.ended->refused == 1);
    REQUIRE(f.Lookup(worker, KeysOf({2})).chunks == 0);
  }
  SECTION("a key that is its own parent") {
    REQUIRE_FALSE(f.Store(worker, KeysOf({3}), KeyOf(3)).has_value());
    REQUIRE(f.Keep(worker, KeysOf({20, 20})) == 1);
    REQUIRE(f.Lookup(worker, KeysOf({20, 20})).chunks == 1);
  }
  SECTION("a ring") {
    REQUIRE_FALSE(f.Store(worker, KeysOf({1}), KeyOf(3)).has_value());
    REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3, 1})).chunks == 3);
  }
  SECTION("nothing at all") {
    REQUIRE_FALSE(f.Store(worker, {}).has_value());
    REQUIRE(f.ended->status.ok());
    REQUIRE(f.Lookup(worker, {}).chunks == 0);
  }
}

TEST_CASE("Core reserves all ranks or none, so that two instances can't wait for each other in a full pool") {
  CoreFixture f;  // 16 slots
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId a0 = f.Worker("a", space, 0), a1 = f.Worker("a", space, 1), b0 = f.Worker("b", space, 0),
                  b1 = f.Worker("b", space, 1);
  std::vector<CopyStarted> copies;
  uint32_t chunks = 0;
  for (uint64_t n = 0; n < 10; ++n) {  // the first ranks alone would fill the pool
    for (const SessionId first : {a0, b1}) {
      if (const auto copy = f.Store(first, {KeyOf(first == a0 ? n : 100 + n)})) {
        copies.push_back(*copy);
        ++chunks;
      }
    }
  }
  REQUIRE(chunks == 8);
  for (uint64_t n = 0; n < 4; ++n) {  // what has begun can be ended by the second ranks, in any order
    copies.push_back(f.Store(a1, {KeyOf(3 - n)}).value());
    copies.push_back(f.Store(b0, {KeyOf(100 + n)}).value());
  }
  for (const CopyStarted& copy : copies) f.Finish(copy.op);
  REQUIRE(f.core->status().sealed == 8);
  REQUIRE(f.slots->live_slots() == 16);
}

TEST_CASE("Core gives up a half store whose last rank never comes, when its time is over and its copies are quiet") {
  CoreFixture::Options options;
  options.core.fill_timeout = absl::Seconds(5);
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId zero = f.Worker("engine", space, 0), one = f.Worker("engine", space, 1);
  f.Finish(f.Store(zero, KeysOf({1}))->op);
  const CopyStarted slow = *f.Store(zero, KeysOf({2}));
  f.PassTime(absl::Seconds(4));
  REQUIRE(f.core->status().filling == 2);
  REQUIRE(f.core->waits_for_clock());
  f.PassTime(absl::Seconds(1));
  REQUIRE(f.core->status().filling == 1);  // the other is still being written
  REQUIRE_FALSE(f.Store(one, KeysOf({2})).has_value());
  f.Finish(slow.op);
  REQUIRE(f.core->status().filling == 0);
  REQUIRE(f.slots->live_slots() == 0);
  REQUIRE_FALSE(f.core->waits_for_clock());
}

TEST_CASE("Core doesn't end a later store of a chunk for the death of a rank that stored it before") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId dying = f.Worker("one", space, 0), zero = f.Worker("two", space, 0), one = f.Worker("two", space, 1);
  const CopyStarted first = *f.Store(dying, KeysOf({1}));
  const CopyStarted child = *f.Store(one, KeysOf({1, 2}));  // 1 keeps its place for the sake of 2
  f.Do(SessionClosed{dying});
  f.Finish(first.op, absl::CancelledError("dead"));
  const CopyStarted again = *f.Store(zero, KeysOf({1}));
  f.PassTime(absl::ZeroDuration());  // reaps what the dead rank has left
  f.Finish(again.op);
  f.Finish(f.Store(one, KeysOf({1})).value().op);
  REQUIRE(f.Lookup(one, KeysOf({1})).chunks == 1);
  f.Finish(child.op);
}

TEST_CASE("A store's answer counts what is kept: not what was cleared, came too late, or failed on another rank") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId zero = f.Worker("engine", space, 0), one = f.Worker("engine", space, 1);
  const CopyStarted copy = *f.Store(zero, KeysOf({1, 2, 3}));
  const auto stored = [&] { return f.core->status().chunks_stored; };
  SECTION("nothing happens") {
    const OpEnded ended = std::get<OpEnded>(f.Finish(copy.op).at(0));
    CHECK(ended.copied == 3);
    CHECK(ended.refused == 0);
    CHECK(stored() == 3);
  }
  SECTION("it is cleared, and the clear has come to it or not") {
    f.Do(ClearAsked{JobId{1}});
    if (GENERATE(true, false)) f.PassTime(absl::ZeroDuration());
    const OpEnded ended = std::get<OpEnded>(f.Finish(copy.op).at(0));
    CHECK(ended.status.ok());
    CHECK(ended.copied == 0);
    CHECK(ended.refused == 3);
    CHECK(stored() == 0);
  }
  SECTION("it comes too late") {
    f.PassTime(absl::Hours(1));
    CHECK(std::get<OpEnded>(f.Finish(copy.op).at(0)).copied == 0);
    CHECK(f.slots->live_slots() == 0);
  }
  SECTION("another rank fails in one of the chunks") {
    const CopyStarted part = *f.Store(one, KeysOf({2}), KeyOf(1));
    f.Finish(part.op, absl::CancelledError("given up"));
    const OpEnded ended = std::get<OpEnded>(f.Finish(copy.op).at(0));
    CHECK(ended.copied == 2);
    CHECK(ended.refused == 1);
    CHECK(stored() == 2);
  }
}

TEST_CASE("Core reaps the half stores of a dead rank in slices") {
  CoreFixture::Options options;
  options.core.slice_work = 4;
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", kTwoRanks);
  const SessionId zero = f.Worker("engine", space, 0);
  f.Worker("engine", space, 1);
  REQUIRE(f.Keep(zero, KeysOf({1, 2, 3, 4, 5})) == 5);
  f.Do(SessionClosed{zero});
  uint32_t ticks = 0;
  for (; f.core->has_work(); ++ticks) f.PassTime(absl::ZeroDuration());
  REQUIRE(ticks >= 3);
  REQUIRE(f.slots->live_slots() == 0);
}

TEST_CASE("Core moves slabs between spaces of different slot sizes") {
  CoreFixture::Options options;
  options.slabs = 3;
  options.core.eviction = Eviction::kLru;  // slabs are emptied when all of their age are
  CoreFixture f(options);
  const SessionId small = f.Worker("small", SpaceNamed("small", {KiB(4)})),
                  large = f.Worker("large", SpaceNamed("large", {KiB(24)}));
  for (int round = 0; round < 3; ++round) {
    for (uint64_t n = 0; n < 48; ++n) REQUIRE(f.Keep(small, {KeyOf(n)}) == 1);
    REQUIRE(f.slots->live_slots() == 48);
    for (uint64_t n = 0; n < 6; ++n) REQUIRE(f.Keep(large, {KeyOf(n)}) == 1);
    REQUIRE(f.slots->live_slots() == 6);
  }
}

TEST_CASE("Core refuses a store when leases hold the whole pool, and serves when they end") {
  CoreFixture::Options options;
  options.core.lease_share = 1;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  std::vector<LeaseId> leases;
  for (uint64_t n = 0; n < 16; ++n) {
    f.Keep(worker, {KeyOf(n)});
    leases.push_back(f.Lookup(worker, {KeyOf(n)}, absl::Seconds(1)).lease);
  }
  REQUIRE_FALSE(f.Store(worker, KeysOf({100, 101})).has_value());
  REQUIRE(f.ended->status.ok());
  REQUIRE(f.ended->refused == 2);
  f.Do(ReleaseAsked{worker, leases[7]});
  REQUIRE(f.Keep(worker, KeysOf({100, 101})) == 1);
  REQUIRE(f.Lookup(worker, KeysOf({7})).chunks == 0);
}

}  // namespace
}  // namespace kvist::core
