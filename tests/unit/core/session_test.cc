#include "daemon/core/sessions.h"

#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

using absl::StatusCode;

TEST_CASE("Core refuses sessions that it can't serve, and says why") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(4)});
  const auto code = [&](std::string_view instance, Role role, uint16_t rank, const SpaceSpec& spec) {
    return f.Open(f.next_session++, instance, role, rank, spec).code();
  };
  REQUIRE(code("engine", Role::kWorker, 1, space) == StatusCode::kOk);
  REQUIRE(code("engine", Role::kWorker, 2, space) == StatusCode::kInvalidArgument);
  REQUIRE(code("engine", Role::kScheduler, 0, SpaceNamed("other", {KiB(4)})) == StatusCode::kFailedPrecondition);
  REQUIRE(code("engine", Role::kScheduler, 0, SpaceNamed("other", {KiB(4)}, "another tenant")) == StatusCode::kOk);
  REQUIRE(code("a", Role::kWorker, 0, SpaceNamed("no ranks", {})) == StatusCode::kInvalidArgument);
  REQUIRE(code("a", Role::kWorker, 0, SpaceNamed("odd slot", {Bytes{5000}})) == StatusCode::kInvalidArgument);
  REQUIRE(code("a", Role::kWorker, 0, SpaceNamed("huge slot", {KiB(68)})) == StatusCode::kInvalidArgument);
  REQUIRE(code("a", Role::kWorker, 0, SpaceNamed("many ranks", std::vector<Bytes>(65, KiB(4)))) ==
          StatusCode::kInvalidArgument);
  SpaceSpec window = SpaceNamed("window", {KiB(4)});
  window.groups[0].reuse.kind = GroupKind::kWindow;
  REQUIRE(code("a", Role::kWorker, 0, window) == StatusCode::kInvalidArgument);
  SpaceSpec uneven = SpaceNamed("uneven", {KiB(4), KiB(4)});
  uneven.groups.push_back({.slot_bytes = {KiB(4)}});
  REQUIRE(code("a", Role::kWorker, 0, uneven) == StatusCode::kInvalidArgument);
  uneven.groups[1].ranks_per_shard = 3;
  REQUIRE(code("a", Role::kWorker, 0, uneven) == StatusCode::kInvalidArgument);
  REQUIRE(f.core->status().sessions == 2);
  REQUIRE(f.core->status().instances == 2);
}

TEST_CASE("Core lets an instance change its space once all its processes have gone") {
  CoreFixture f;
  const SessionId old = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  REQUIRE(std::holds_alternative<SessionDrained>(f.Do(SessionClosed{old}).at(0)));
  REQUIRE(f.Do(SessionClosed{old}).empty());
  f.Worker("engine", SpaceNamed("other", {KiB(4)}));
}

TEST_CASE("Core ends a dead session's leases at once, and drains it when its last copy is quiet") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId worker = f.Worker("engine", space), survivor = f.Worker("engine", space);
  f.Keep(worker, KeysOf({1, 2}));
  const LeaseId lease = f.Lookup(worker, KeysOf({1, 2}), absl::Seconds(1)).lease;
  const CopyStarted load = *f.Load(worker, lease, 0, 2);
  const CopyStarted store = *f.Store(worker, KeysOf({3}));
  const Effects closed = f.Do(SessionClosed{worker});
  REQUIRE(closed.size() == 2);
  const OpId one = std::get<CopyCancelled>(closed[0]).op, two = std::get<CopyCancelled>(closed[1]).op;
  REQUIRE(((one == load.op && two == store.op) || (one == store.op && two == load.op)));
  REQUIRE_FALSE(f.Load(survivor, lease, 0, 2).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kAborted);
  REQUIRE(f.Do(LookupAsked{worker, RequestTag{9}, KeysOf({1}), {}}).empty());
  for (uint64_t n = 100; n < 140; ++n) f.Keep(survivor, {KeyOf(n)});
  REQUIRE(f.slots->IsLive(load.slots[1]));  // whatever happened to the lease

  REQUIRE(f.Finish(load.op).empty());
  const Effects last = f.Finish(store.op, absl::CancelledError("dead"));
  REQUIRE(last.size() == 1);
  REQUIRE(std::get<SessionDrained>(last[0]).session == worker);
  REQUIRE(f.Finish(store.op).empty());
  f.PassTime(absl::ZeroDuration());
  REQUIRE(f.core->status().filling == 0);
  REQUIRE(f.core->status().leases == 0);
  REQUIRE(f.core->status().ops == 0);
  REQUIRE(f.core->status().sessions == 1);
}

TEST_CASE("Core ends what a dead session held in slices, and frees its instance's budgets as it goes and no earlier") {
  CoreFixture::Options options;
  options.slabs = 4;  // of 16 slots
  options.core.slice_work = 8;
  options.core.lease_share = 0.5;
  options.core.private_share = 0.5;
  CoreFixture f(options);
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const SessionId worker = f.Worker("engine", space), sibling = f.Worker("engine", space);
  REQUIRE(f.Keep(worker, KeysOf({1, 2, 3, 4})) == 4);
  LeaseId lease;
  for (int i = 0; i < 8; ++i) {  // 4 chunks each: the whole budget
    lease = f.Lookup(worker, KeysOf({1, 2, 3, 4}), absl::Seconds(1)).lease;
    REQUIRE(lease);
  }
  AllocationId allocation;
  for (int i = 0; i < 8; ++i) {
    const Effects answer = f.Do(AllocateAsked{worker, RequestTag{f.next_tag++}, GroupId{0}, 4});
    allocation = std::get<Answered>(answer.at(0)).allocation;
    REQUIRE(allocation);
  }
  const auto allocated = [&] {
    const Effects answer = f.Do(AllocateAsked{sibling, RequestTag{f.next_tag++}, GroupId{0}, 4});
    return std::get<Answered>(answer.at(0)).status.ok();
  };
  REQUIRE(std::holds_alternative<SessionDrained>(f.Do(SessionClosed{worker}).at(0)));
  // They are over, and still count.
  REQUIRE(f.core->status().leases == 8);
  REQUIRE(f.core->status().allocations == 8);
  REQUIRE_FALSE(f.Load(sibling, lease, 0, 1).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kAborted);
  f.Do(ReleaseAsked{sibling, lease});
  f.Do(FreeAsked{sibling, allocation});
  REQUIRE(f.core->status().leases == 8);
  REQUIRE(f.core->status().allocations == 8);
  REQUIRE_FALSE(f.Lookup(sibling, KeysOf({1}), absl::Seconds(1)).lease);
  REQUIRE_FALSE(allocated());
  uint32_t ticks = 0;
  for (; f.core->has_work() && ticks < 100; ++ticks) f.PassTime(absl::ZeroDuration());
  REQUIRE(ticks >= 8);
  REQUIRE(f.core->status().leases == 0);
  REQUIRE(f.core->status().allocations == 0);
  REQUIRE(f.slots->live_slots() == 4);
  REQUIRE(f.Lookup(sibling, KeysOf({1}), absl::Seconds(1)).lease);
  for (int i = 0; i < 8; ++i) REQUIRE(allocated());
  REQUIRE_FALSE(allocated());
}

TEST_CASE("Core lets only workers load and store, and bounds what they have in flight") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  REQUIRE(f.Open(77, "engine", Role::kScheduler, 0, space).ok());
  REQUIRE_FALSE(f.Store(SessionId{77}, KeysOf({1})).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kFailedPrecondition);
  const SessionId worker = f.Worker("engine", space);
  f.Keep(worker, KeysOf({1}));
  const LeaseId lease = f.Lookup(SessionId{77}, KeysOf({1}), absl::Seconds(1)).lease;
  REQUIRE_FALSE(f.Load(SessionId{77}, lease, 0, 1).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kFailedPrecondition);
  for (size_t i = 0; i < Sessions::kOpsPerSession; ++i) {
    Effects effects;
    f.core->Handle(LoadAsked{worker, RequestTag{i}, lease, GroupId{0}, 0, 1}, &effects);
    REQUIRE(std::holds_alternative<CopyStarted>(effects.at(0)));
  }
  REQUIRE_FALSE(f.Load(worker, lease, 0, 1).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kResourceExhausted);
  REQUIRE_FALSE(f.Store(worker, KeysOf({2})).has_value());
  REQUIRE(f.ended->status.code() == StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvist::core
