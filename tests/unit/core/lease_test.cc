#include "daemon/core/leases.h"

#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

using absl::StatusCode;

TEST_CASE("Core keeps leased chunks while room is needed, and no longer") {
  CoreFixture f;  // 16 slots
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  REQUIRE(f.Keep(worker, KeysOf({1, 2, 3})) == 3);
  const LookupAnswered hit = f.Lookup(worker, KeysOf({1, 2, 3, 4}), absl::Seconds(10));
  REQUIRE(hit.chunks == 3);
  REQUIRE(hit.lease);
  for (uint64_t n = 100; n < 140; ++n) REQUIRE(f.Keep(worker, {KeyOf(n)}) == 1);
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 3);
  f.Do(ReleaseAsked{worker, hit.lease});
  for (uint64_t n = 100; n < 140; ++n) f.Keep(worker, {KeyOf(n)});
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 0);
}

TEST_CASE("Core answers without a lease when the instance's budget is spent, for that instance only") {
  CoreFixture::Options options;
  options.core.lease_share = 0.25;  // 4 of 16 slots
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId worker = f.Worker("engine", space), other = f.Worker("other", space);
  f.Keep(worker, KeysOf({1, 2, 3}));
  const LookupAnswered first = f.Lookup(worker, KeysOf({1, 2, 3}), absl::Seconds(1));
  REQUIRE(first.lease);
  const LookupAnswered second = f.Lookup(worker, KeysOf({1, 2, 3}), absl::Seconds(1));
  REQUIRE(second.chunks == 3);
  REQUIRE_FALSE(second.lease);
  REQUIRE(f.Lookup(worker, KeysOf({1}), absl::Seconds(1)).lease);
  REQUIRE_FALSE(f.Lookup(worker, KeysOf({1}), absl::Seconds(1)).lease);
  REQUIRE(f.Lookup(other, KeysOf({1, 2, 3}), absl::Seconds(1)).lease);
  f.Do(ReleaseAsked{worker, first.lease});
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3}), absl::Seconds(1)).lease);
}

TEST_CASE("Core::Retune counts for later leases and for all half stores, and takes no lease back") {
  CoreFixture f;  // 16 slots, half of them for leases
  const SpaceSpec two_ranks = SpaceNamed("space", {KiB(4), KiB(4)});
  const SessionId worker = f.Worker("engine", SpaceNamed("one rank", {KiB(4)})), half = f.Worker("half", two_ranks, 0);
  f.Keep(worker, KeysOf({1, 2, 3, 4}));
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3, 4}), absl::Seconds(50)).lease);
  f.Keep(half, KeysOf({10}));
  REQUIRE(f.core->status().filling == 1);

  CoreOptions options;
  options.lease_share = 0.25;  // 4 slots: all are leased already
  options.lease_max = absl::Seconds(5);
  options.fill_timeout = absl::Seconds(2);
  f.core->Retune(options);
  f.core->CheckInvariants();
  REQUIRE_FALSE(f.Lookup(worker, KeysOf({1}), absl::Seconds(50)).lease);
  const SessionId other = f.Worker("other", SpaceNamed("one rank", {KiB(4)}));
  REQUIRE(f.Lookup(other, KeysOf({1}), absl::Seconds(50)).lease);
  f.Keep(half, KeysOf({11}));
  REQUIRE(f.core->status().filling == 2);
  f.PassTime(absl::Seconds(6));
  CHECK(f.core->status().leases == 1);  // the old one
  CHECK(f.core->status().filling == 0);
  f.PassTime(absl::Seconds(50));
  CHECK(f.core->status().leases == 0);

  options.fill_timeout = absl::Seconds(30);
  f.core->Retune(options);
  f.Keep(half, KeysOf({12}));
  f.PassTime(absl::Seconds(29));
  CHECK(f.core->status().filling == 1);
  f.PassTime(absl::Seconds(2));
  CHECK(f.core->status().filling == 0);
}

TEST_CASE("Core counts in the budget what is leased, not what some groups have beyond the common prefix") {
  CoreFixture::Options options;
  options.core.lease_share = 0.25;  // 4 of 16 slots
  CoreFixture f(options);
  SpaceSpec space = SpaceNamed("two groups", {KiB(4)});
  space.groups.push_back(space.groups[0]);
  const SessionId worker = f.Worker("engine", space);
  f.Keep(worker, KeysOf({1, 2, 3, 4}));
  const Effects effects = f.Do(StoreAsked{worker, RequestTag{99}, GroupId{1}, {}, KeysOf({1, 2})});
  f.Finish(std::get<CopyStarted>(effects[0]).op);
  const LookupAnswered hit = f.Lookup(worker, KeysOf({1, 2, 3, 4}), absl::Seconds(1));
  REQUIRE(hit.chunks == 2);
  REQUIRE(hit.lease);
  REQUIRE_FALSE(f.Lookup(worker, KeysOf({1}), absl::Seconds(1)).lease);
  REQUIRE(f.Load(worker, hit.lease, 0, 2).has_value());
  REQUIRE_FALSE(f.Load(worker, hit.lease, 2, 1).has_value());
}

TEST_CASE("Core ends a lease at its deadline, which it caps, and lets running loads end") {
  CoreFixture::Options options;
  options.core.lease_max = absl::Seconds(2);
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2}));
  const LookupAnswered capped = f.Lookup(worker, KeysOf({1, 2}), absl::InfiniteDuration());
  const LookupAnswered shorter = f.Lookup(worker, KeysOf({1}), absl::Seconds(1));
  const std::optional<CopyStarted> load = f.Load(worker, shorter.lease, 0, 1);
  REQUIRE(load.has_value());
  f.PassTime(absl::Seconds(1));
  REQUIRE_FALSE(f.Load(worker, shorter.lease, 0, 1).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kAborted);
  REQUIRE(f.Load(worker, capped.lease, 1, 1).has_value());
  f.PassTime(absl::Seconds(1));
  REQUIRE(f.core->status().leases == 0);
  for (uint64_t n = 100; n < 140; ++n) f.Keep(worker, {KeyOf(n)});
  REQUIRE(f.slots->IsLive(load->slots[0]));
  REQUIRE(std::get<OpEnded>(f.Finish(load->op).at(0)).status.ok());
}

TEST_CASE("Core expires at most a slice of leases a tick") {
  CoreFixture::Options options;
  options.core.slice_work = 6;  // a lease is looked at, and its chunk let go
  options.core.lease_share = 1;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1}));
  for (int i = 0; i < 7; ++i) REQUIRE(f.Lookup(worker, KeysOf({1}), absl::Seconds(1)).lease);
  f.PassTime(absl::Seconds(2));
  REQUIRE(f.core->status().leases == 4);
  REQUIRE(f.core->waits_for_clock());
  REQUIRE(f.core->has_work());
  f.PassTime(absl::ZeroDuration());
  f.PassTime(absl::ZeroDuration());
  REQUIRE(f.core->status().leases == 0);
  REQUIRE_FALSE(f.core->has_work());
}

TEST_CASE("Core refuses leases that are stale, of another instance, or never were one, and bad ranges of good ones") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId worker = f.Worker("engine", space), sibling = f.Worker("engine", space), other = f.Worker("other", space);
  f.Keep(worker, KeysOf({1, 2}));
  const LeaseId lease = f.Lookup(worker, KeysOf({1, 2}), absl::Seconds(1)).lease;
  const auto code = [&](SessionId session, LeaseId id, uint32_t first, uint32_t count) {
    return f.Load(session, id, first, count).has_value() ? StatusCode::kOk : f.ended->status.code();
  };
  REQUIRE(code(worker, lease, 0, 0) == StatusCode::kInvalidArgument);
  REQUIRE(code(worker, lease, 2, 1) == StatusCode::kInvalidArgument);
  REQUIRE(code(worker, lease, 1, 2) == StatusCode::kInvalidArgument);
  REQUIRE(code(worker, lease, UINT32_MAX, UINT32_MAX) == StatusCode::kInvalidArgument);
  REQUIRE(code(worker, lease, 1, UINT32_MAX) == StatusCode::kInvalidArgument);
  REQUIRE(code(other, lease, 0, 2) == StatusCode::kAborted);
  REQUIRE(code(worker, {}, 0, 2) == StatusCode::kAborted);
  REQUIRE(code(worker, {lease.index, lease.generation + 2}, 0, 2) == StatusCode::kAborted);
  REQUIRE(code(sibling, lease, 0, 2) == StatusCode::kOk);  // the scheduler looks up, the workers load
  f.Do(ReleaseAsked{other, lease});
  REQUIRE(code(sibling, lease, 0, 2) == StatusCode::kOk);
  f.Do(ReleaseAsked{sibling, lease});
  f.Do(ReleaseAsked{sibling, lease});
  const LeaseId next = f.Lookup(worker, KeysOf({1, 2}), absl::Seconds(1)).lease;
  REQUIRE(next.index == lease.index);
  REQUIRE(code(worker, lease, 0, 2) == StatusCode::kAborted);
}

TEST_CASE("Leases leave nothing of an instance or a session behind when they refuse") {
  Leases leases(KiB(4), 0);
  Lease lease;
  lease.instance = InstanceId{1};
  lease.session = SessionId{1};
  lease.bytes = KiB(8);
  REQUIRE_FALSE(leases.Grant(lease));
  REQUIRE(leases.used(InstanceId{1}) == Bytes{0});
  lease.bytes = KiB(4);
  const LeaseId id = leases.Grant(lease);
  REQUIRE(id);
  REQUIRE(leases.Find(id, InstanceId{1}) != nullptr);
  REQUIRE(leases.Find(id, InstanceId{2}) == nullptr);
  leases.Close(SessionId{2});
  REQUIRE_FALSE(leases.OfClosed());
  leases.Close(SessionId{1});
  REQUIRE(leases.OfClosed() == id);
  REQUIRE(leases.Find(id, InstanceId{1}) == nullptr);
  REQUIRE(leases.used(InstanceId{1}) == KiB(4));  // until what it keeps is free
  leases.End(id);
  REQUIRE_FALSE(leases.OfClosed());
  REQUIRE(leases.used(InstanceId{1}) == Bytes{0});
  REQUIRE_FALSE(leases.Expired(absl::InfiniteFuture()));
}

}  // namespace
}  // namespace kvist::core
