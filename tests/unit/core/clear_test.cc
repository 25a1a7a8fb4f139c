#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

TEST_CASE("Core makes everything invisible at once when a clear comes, and frees it in slices") {
  CoreFixture::Options options;
  options.core.slice_chunks = 4;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)})),
                  other = f.Worker("other", SpaceNamed("other", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  f.Keep(other, KeysOf({1, 2}));
  REQUIRE(f.Do(ClearAsked{7, SpaceId{0}}).empty());
  REQUIRE(f.Lookup(worker, KeysOf({1, 2})).chunks == 0);
  REQUIRE(f.slots->live_slots() == 11);
  Effects effects;
  uint32_t ticks = 0;
  for (; f.core->has_work(); ++ticks) effects = f.PassTime(absl::ZeroDuration());
  REQUIRE(ticks >= 3);
  REQUIRE(std::get<ClearEnded>(effects.at(0)).job == 7);
  REQUIRE(std::get<ClearEnded>(effects.at(0)).chunks == 9);
  REQUIRE(f.slots->live_slots() == 2);
  REQUIRE(f.Lookup(other, KeysOf({1, 2})).chunks == 2);
}

TEST_CASE("Core stores anew what a running clear hasn't come to, and keeps that") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  f.Do(ClearAsked{1, {}});
  REQUIRE_FALSE(f.Store(worker, KeysOf({3}), KeyOf(2)).has_value());  // its parent is gone
  REQUIRE(f.Keep(worker, KeysOf({1, 2})) == 2);
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 2);
  while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 2);
  REQUIRE(f.slots->live_slots() == 2);
}

TEST_CASE("Core lets a lease that a clear has overtaken load, and frees its chunks when it ends") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  const LeaseId lease = f.Lookup(worker, KeysOf({1, 2}), absl::Seconds(1)).lease;
  f.Do(ClearAsked{1, {}});
  f.PassTime(absl::ZeroDuration());
  REQUIRE(f.slots->live_slots() == 2);
  const CopyStarted load = *f.Load(worker, lease, 0, 2);
  f.Do(ReleaseAsked{worker, lease});
  REQUIRE(f.Keep(worker, KeysOf({1})) == 1);  // the same key again, beside the old bytes
  REQUIRE(f.slots->live_slots() == 3);
  f.Finish(load.op);
  REQUIRE(f.slots->live_slots() == 1);
  REQUIRE(f.Lookup(worker, KeysOf({1})).chunks == 1);
}

TEST_CASE("Core never shows what was being stored when a clear came") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(4)});
  const SessionId zero = f.Worker("engine", space, 0), one = f.Worker("engine", space, 1);
  const CopyStarted before = *f.Store(zero, KeysOf({1}));
  f.Do(ClearAsked{1, {}});
  SECTION("the clear comes to it first") { f.PassTime(absl::ZeroDuration()); }
  SECTION("the other rank comes to it first") {}
  const CopyStarted after = *f.Store(one, KeysOf({1}));
  f.Finish(before.op);
  f.Finish(after.op);
  REQUIRE(f.Lookup(zero, KeysOf({1})).chunks == 0);
  f.Finish(f.Store(zero, KeysOf({1})).value().op);
  REQUIRE(f.Lookup(zero, KeysOf({1})).chunks == 1);
  while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
  REQUIRE(f.slots->live_slots() == 2);
}

TEST_CASE("Core ends a clear of a space that it has not met at once") {
  CoreFixture f;
  const Effects effects = f.Do(ClearAsked{3, SpaceId{9}});
  REQUIRE(std::get<ClearEnded>(effects.at(0)).chunks == 0);
  REQUIRE_FALSE(f.core->has_work());
}

}  // namespace
}  // namespace kvist::core
