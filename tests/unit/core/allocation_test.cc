#include "daemon/core/allocations.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

// Two ranks, three layers.
SpaceSpec Space(std::string_view tenant = "tenant") {
  SpaceSpec spec = SpaceNamed("space", {KiB(4), KiB(4)}, tenant);
  spec.groups[0].layers = 3;
  return spec;
}

Answered Allocate(CoreFixture& f, SessionId session, uint32_t chunks, GroupId group = {}) {
  const Effects effects = f.Do(AllocateAsked{session, RequestTag{f.next_tag++}, group, chunks});
  REQUIRE(effects.size() == 1);
  return std::get<Answered>(effects[0]);
}

struct Swapped {
  std::optional<CopyStarted> copy;
  OpEnded ended;  // when there is none
};

Swapped Swap(CoreFixture& f, SessionId session, Direction direction, AllocationId id, uint32_t first, uint32_t count,
             uint32_t first_layer = 0, uint32_t layers = 3) {
  Effects effects =
      f.Do(SwapAsked{session, RequestTag{f.next_tag++}, direction, id, GroupId{0}, first, count, first_layer, layers});
  REQUIRE(effects.size() == 1);
  if (auto* copy = std::get_if<CopyStarted>(&effects[0])) return {std::move(*copy), {}};
  return {std::nullopt, std::get<OpEnded>(effects[0])};
}
constexpr Direction kOut = Direction::kStore, kIn = Direction::kLoad;

TEST_CASE("An allocation takes slots on all ranks, evicting what is cached, and gives them back") {
  CoreFixture::Options options;
  options.slabs = 2;  // 32 slots
  options.core.private_share = 0.5;
  CoreFixture f(options);
  const SessionId rank0 = f.Worker("engine", Space(), 0), rank1 = f.Worker("engine", Space(), 1);
  for (uint64_t n = 0; n < 16; ++n) {
    REQUIRE(f.Keep(rank0, {KeyOf(n)}) == 1);
    REQUIRE(f.Keep(rank1, {KeyOf(n)}) == 1);
  }
  REQUIRE(f.slots->live_slots() == 32);
  const Answered answer = Allocate(f, rank0, 5);
  REQUIRE(answer.status.ok());
  REQUIRE(answer.allocation);
  CHECK(f.slots->live_slots() == 32);
  CHECK(f.core->status().allocations == 1);
  CHECK(f.core->status().private_bytes == KiB(40));
  CHECK(f.core->status().sealed == 11);

  // A flood can't have them.
  for (uint64_t n = 100; n < 140; ++n) f.Keep(rank0, {KeyOf(n)});
  CHECK(f.core->status().private_bytes == KiB(40));
  f.Do(FreeAsked{rank1, answer.allocation});  // any session of the instance
  CHECK(f.core->status().private_bytes == Bytes{0});
  f.Do(FreeAsked{rank1, answer.allocation});  // again: ignored
  const Swapped late = Swap(f, rank0, kOut, answer.allocation, 0, 1);
  CHECK(absl::IsAborted(late.ended.status));
}

TEST_CASE("What was taken out comes back, layer by layer, and nothing else does") {
  CoreFixture::Options options;
  options.slabs = 2;
  CoreFixture f(options);
  const SessionId rank0 = f.Worker("engine", Space(), 0), rank1 = f.Worker("engine", Space(), 1);
  const AllocationId id = Allocate(f, rank0, 4).allocation;
  REQUIRE(id);
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kIn, id, 0, 1).ended.status));  // never taken out: others' bytes

  const Swapped out = Swap(f, rank0, kOut, id, 1, 2, 1, 2);  // chunks 1 and 2, layers 1 and 2
  REQUIRE(out.copy.has_value());
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kIn, id, 1, 1, 1, 1).ended.status));   // not through yet
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kOut, id, 2, 2, 2, 1).ended.status));  // would tear it
  f.Finish(out.copy->op);
  const Swapped in = Swap(f, rank0, kIn, id, 1, 2, 1, 2);
  REQUIRE(in.copy.has_value());
  CHECK(in.copy->slots == out.copy->slots);
  CHECK(Swap(f, rank0, kIn, id, 2, 1, 2, 1).copy.has_value());                          // two may read
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kOut, id, 2, 1).ended.status));       // but not be written under
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kIn, id, 1, 2, 0, 3).ended.status));  // layer 0 isn't there
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kIn, id, 0, 2, 1, 2).ended.status));  // chunk 0 isn't
  CHECK(absl::IsFailedPrecondition(Swap(f, rank1, kIn, id, 1, 2, 1, 2).ended.status));  // another rank's isn't
}

TEST_CASE("A swap-out that fails leaves nothing to bring back") {
  CoreFixture f;
  const SessionId rank0 = f.Worker("engine", Space(), 0);
  const AllocationId id = Allocate(f, rank0, 1).allocation;
  f.Finish(Swap(f, rank0, kOut, id, 0, 1).copy->op);
  const Swapped again = Swap(f, rank0, kOut, id, 0, 1);
  REQUIRE(again.copy.has_value());
  f.Finish(again.copy->op, absl::CancelledError("given up"));
  CHECK(absl::IsFailedPrecondition(Swap(f, rank0, kIn, id, 0, 1).ended.status));
}

TEST_CASE("An allocation ends with its session, but not under a copy") {
  CoreFixture f;
  const SessionId scheduler{100};
  REQUIRE(f.Open(100, "engine", Role::kScheduler, 0, Space()).ok());
  const SessionId rank0 = f.Worker("engine", Space(), 0);
  const AllocationId id = Allocate(f, scheduler, 2).allocation;
  CHECK(absl::IsFailedPrecondition(Swap(f, scheduler, kOut, id, 0, 1).ended.status));  // it has no memory
  const Swapped out = Swap(f, rank0, kOut, id, 0, 2);
  REQUIRE(out.copy.has_value());
  f.Do(SessionClosed{scheduler});
  CHECK(absl::IsAborted(Swap(f, rank0, kOut, id, 0, 1).ended.status));  // at once
  f.PassTime(absl::ZeroDuration());
  CHECK_FALSE(f.core->has_work());
  CHECK(f.core->status().allocations == 0);
  CHECK(f.slots->live_slots() == 4);  // a copy writes there
  CHECK(f.core->status().private_bytes == KiB(16));
  const Effects effects = f.Finish(out.copy->op);
  CHECK(std::get<OpEnded>(effects[0]).status.ok());
  CHECK(f.slots->live_slots() == 0);
  CHECK(f.core->status().private_bytes == Bytes{0});
  CHECK(f.core->status().chunks == 0);
}

TEST_CASE("What copies still hold of a freed allocation counts: freeing under them gets nobody more than its share") {
  CoreFixture::Options options;
  options.core.private_share = 0.5;  // 8 of 16 slots: 4 chunks of two ranks
  CoreFixture f(options);
  const SessionId first = f.Worker("engine", Space(), 0), second = f.Worker("engine", Space(), 0);
  const AllocationId id = Allocate(f, first, 3).allocation;
  const Swapped out = Swap(f, first, kOut, id, 0, 1), beside = Swap(f, second, kOut, id, 1, 2);
  REQUIRE(out.copy.has_value());
  REQUIRE(beside.copy.has_value());
  SECTION("freed") { f.Do(FreeAsked{first, id}); }
  SECTION("its session is gone") {
    f.Do(SessionClosed{first});
    f.PassTime(absl::ZeroDuration());
  }
  SECTION("its instance is gone, and another of its name there") {
    f.Do(FreeAsked{first, id});
    f.Do(SessionClosed{first});
    f.Do(SessionClosed{second});
  }
  const SessionId third = f.Worker("engine", Space(), 0), other = f.Worker("other", Space(), 0);
  CHECK(absl::IsAborted(Swap(f, third, kOut, id, 0, 1).ended.status));
  f.Do(FreeAsked{third, id});  // again: ignored
  for (const SessionId session : {third, other}) CHECK(absl::IsResourceExhausted(Allocate(f, session, 2).status));
  f.Finish(out.copy->op);
  CHECK(absl::IsResourceExhausted(Allocate(f, third, 2).status));  // all of it, till the last is quiet
  f.Finish(beside.copy->op);
  CHECK(f.core->status().private_bytes == Bytes{0});
  CHECK(f.slots->live_slots() == 0);
  CHECK(Allocate(f, third, 4).status.ok());
}

TEST_CASE("A tenant has its share of private allocations, under however many names its engines come") {
  CoreFixture::Options options;
  options.core.private_share = 0.5;
  CoreFixture f(options);
  const SessionId first = f.Worker("a", Space(), 0), second = f.Worker("b", Space(), 0);
  const AllocationId id = Allocate(f, first, 3).allocation;
  REQUIRE(id);
  const Answered refused = Allocate(f, second, 2);
  CHECK(absl::IsResourceExhausted(refused.status));
  CHECK(std::string(refused.status.message()).find("the tenant has") != std::string::npos);
  CHECK(Allocate(f, f.Worker("c", Space("another tenant"), 0), 2).status.ok());
  f.Do(FreeAsked{first, id});
  CHECK(Allocate(f, second, 2).status.ok());
}

TEST_CASE("An allocation is all or nothing, and within the instance's share") {
  CoreFixture::Options options;
  options.core.private_share = 0.5;  // 8 of 16 slots: 4 chunks of two ranks
  CoreFixture f(options);
  const SessionId rank0 = f.Worker("engine", Space(), 0), rank1 = f.Worker("engine", Space(), 1),
                  other = f.Worker("other", Space("another tenant"), 0);
  CHECK(absl::IsResourceExhausted(Allocate(f, rank0, 5).status));
  CHECK(f.slots->live_slots() == 0);
  const Answered all = Allocate(f, rank0, 4);
  CHECK(all.status.ok());
  CHECK(absl::IsResourceExhausted(Allocate(f, rank1, 1).status));
  CHECK(absl::IsAborted(Swap(f, other, kOut, all.allocation, 0, 1).ended.status));  // another instance's
  f.Do(FreeAsked{other, all.allocation});
  CHECK(f.core->status().allocations == 1);

  // Others' leases leave less room than the share: nothing is half allocated.
  for (uint64_t n = 0; n < 3; ++n) REQUIRE(f.Keep(rank0, {KeyOf(n)}) + f.Keep(rank1, {KeyOf(n)}) == 2);
  for (uint64_t n = 0; n < 3; ++n) REQUIRE(f.Lookup(rank0, {KeyOf(n)}, absl::Seconds(10)).lease);
  CHECK(absl::IsResourceExhausted(Allocate(f, other, 2).status));
  CHECK(f.slots->live_slots() == 14);
  CHECK(Allocate(f, other, 1).status.ok());

  for (const uint32_t chunks : {0u, Core::kKeysMax + 1}) CHECK(absl::IsInvalidArgument(Allocate(f, rank0, chunks).status));
  CHECK(absl::IsInvalidArgument(Allocate(f, rank0, 1, GroupId{1}).status));
  const struct {
    uint32_t first, count, first_layer, layers;
  } wrong[] = {{0, 0, 0, 3}, {4, 1, 0, 3}, {0, 5, 0, 3}, {3, UINT32_MAX, 0, 3},
               {0, 1, 3, 1}, {0, 1, 1, 3}, {0, 1, 0, 0}, {0, 1, 1, UINT32_MAX}};
  for (const auto& w : wrong)
    CHECK(absl::IsInvalidArgument(
        Swap(f, rank0, kOut, all.allocation, w.first, w.count, w.first_layer, w.layers).ended.status));
}

TEST_CASE("Ranks with equal bytes take them out once") {
  SpaceSpec spec = SpaceNamed("mla", {KiB(4)});
  spec.groups[0].ranks_per_shard = 2;
  CoreFixture f;
  const SessionId rank0 = f.Worker("engine", spec, 0), rank1 = f.Worker("engine", spec, 1);
  const AllocationId id = Allocate(f, rank0, 2).allocation;
  const Swapped second = Swap(f, rank1, kOut, id, 0, 2, 0, 1);
  CHECK(second.ended.status.ok());
  CHECK(second.ended.skipped == 2);
  f.Finish(Swap(f, rank0, kOut, id, 0, 2, 0, 1).copy->op);
  CHECK(Swap(f, rank0, kIn, id, 0, 2, 0, 1).copy.has_value());
  CHECK(Swap(f, rank1, kIn, id, 0, 2, 0, 1).copy.has_value());
}

TEST_CASE("Swaps knows which layers of which chunks were taken out, as a plain table does") {
  const uint32_t seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (const uint32_t layers : {1u, 63u, 64u, 65u, 200u}) {
    constexpr uint32_t kShards = 2, kChunks = 3;
    Swaps swaps(kShards, kChunks, layers);
    std::vector<bool> plain(size_t{kShards} * kChunks * layers);
    uint32_t next = 0, written = 0;
    for (int step = 0; step < 400; ++step) {
      SwapRange range{static_cast<uint32_t>(random() % kShards),
                      static_cast<uint32_t>(random() % kChunks),
                      0,
                      static_cast<uint32_t>(random() % layers),
                      0,
                      random() % 2 == 0};
      range.count = 1 + static_cast<uint32_t>(random() % (kChunks - range.first));
      range.layers = 1 + static_cast<uint32_t>(random() % (layers - range.first_layer));
      bool all = true;
      const bool complete = random() % 4 > 0;
      for (uint32_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
        for (uint32_t layer = range.first_layer; layer < range.first_layer + range.layers; ++layer) {
          const size_t at = (size_t{range.shard} * kChunks + chunk) * layers + layer;
          all = all && plain[at];
          if (range.out) plain[at] = complete;
        }
      }
      REQUIRE(swaps.Written(range) == all);
      written += all ? 1 : 0;
      if (!range.out) continue;
      const OpId op{++next, 1};
      swaps.Begin(op, range);
      REQUIRE_FALSE(swaps.Written(range));
      swaps.End(op, complete);
      REQUIRE(swaps.Written(range) == complete);
    }
    REQUIRE(written > 0);
  }
}

}  // namespace
}  // namespace kvist::core
