// What the core notes of the tiers below: writes and who waits for them, reads and who waits for those, and what clears have to know.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "daemon/core/arrivals.h"
#include "daemon/core/disk_writes.h"
#include "daemon/core/flushes.h"
#include "daemon/core/gate.h"
#include "daemon/core/reads.h"
#include "daemon/core/untold_clears.h"

namespace kvist::core {
namespace {

ChunkKey KeyNumbered(uint8_t n) {
  ChunkKey key;
  key.bytes[0] = n;
  return key;
}

TEST_CASE("DiskWrites says when all that were begun before have ended, whatever the order in which they end") {
  std::mt19937 random(5);
  DiskWrites writes;
  std::map<ChunkIndex, uint64_t> model;
  Bytes bytes{};
  for (int step = 0; step < 20000; ++step) {
    const ChunkIndex chunk = random() % 64;
    const Bytes size = KiB(4) * (1 + chunk % 3);
    if (model.contains(chunk)) {
      CHECK(writes.Has(chunk));
      writes.End(chunk, size);
      model.erase(chunk);
      bytes -= size;
    } else {
      CHECK_FALSE(writes.Has(chunk));
      model[chunk] = writes.next();
      writes.Begin(chunk, size);
      bytes += size;
    }
    const uint64_t number = random() % (writes.next() + 1);
    bool ended = true;
    for (const auto& [open, begun] : model) ended = ended && begun >= number;
    CHECK(writes.EndedBelow(number) == ended);
    CHECK(writes.bytes() == bytes);
    CHECK(writes.size() == model.size());
    CHECK(writes.empty() == model.empty());
    writes.CheckInvariants();
  }
}

TEST_CASE("a flush counts what becomes of chunks that it has passed, in its space") {
  Flushes flushes;
  flushes.Add({.session = SessionId{1}, .tag = {}, .space = SpaceId{0}, .next = 10, .end = 20});
  flushes.Add({.session = {}, .tag = {}, .space = {}, .next = 5, .end = 20});
  CHECK(flushes.HasOf(SessionId{1}));
  CHECK_FALSE(flushes.HasOf(SessionId{2}));
  flushes.WriteEnded(4, SpaceId{0}, true);
  flushes.WriteEnded(9, SpaceId{0}, true);
  flushes.WriteEnded(3, SpaceId{1}, false);
  flushes.WriteEnded(10, SpaceId{0}, true);  // not passed yet
  CHECK(flushes.first().chunks == 2);
  CHECK(flushes.first().failed == 0);
  flushes.Lost(9, SpaceId{0});
  flushes.Lost(12, SpaceId{0});
  CHECK(flushes.first().chunks == 1);
  CHECK(flushes.first().failed == 1);
  flushes.DropOf(SessionId{1});
  CHECK(flushes.first().chunks == 1);
  CHECK(flushes.first().failed == 1);
  flushes.Lost(1, SpaceId{7});
  flushes.Lost(1, SpaceId{7});  // it has counted no more
  CHECK(flushes.first().chunks == 0);
  CHECK(flushes.first().failed == 2);
}

TEST_CASE("operations wait for their chunks' reads, each of them once") {
  WaitingOps waiting;
  const OpId a{1, 1}, b{2, 1};
  waiting.Add(7, a);
  waiting.Add(7, b);
  waiting.Add(8, a);
  waiting.Begun({9, 1});  // nobody waits for it
  CHECK(!waiting.has_begun());
  waiting.Begun({7, 1});
  REQUIRE(waiting.has_begun());
  CHECK(waiting.first_begun() == ChunkRef{7, 1});
  waiting.DropFirstBegun();
  CHECK_FALSE(waiting.has_begun());
  std::set<uint64_t> told{waiting.Take(7).Pack()};
  CHECK(waiting.Has(7));
  told.insert(waiting.Take(7).Pack());
  CHECK(told == std::set{a.Pack(), b.Pack()});
  CHECK_FALSE(waiting.Has(7));
  waiting.Remove(8, a);
  CHECK_FALSE(waiting.Has(8));
  CHECK(waiting.all().empty());
}

TEST_CASE("what has come to a tier since a clear of it stays, also in a place that is used again") {
  Arrivals arrivals;
  CHECK_FALSE(arrivals.watched());
  const uint64_t first = arrivals.Watch();
  arrivals.Note({3, 1}, Tier::kSsd);
  const uint64_t second = arrivals.Watch();
  CHECK(arrivals.CameSince({3, 1}, Tier::kSsd, first));
  CHECK_FALSE(arrivals.CameSince({3, 1}, Tier::kSsd, second));
  CHECK_FALSE(arrivals.CameSince({3, 1}, Tier::kDram, first));
  CHECK_FALSE(arrivals.CameSince({3, 2}, Tier::kSsd, first));
  arrivals.Note({3, 2}, Tier::kSsd);
  CHECK(arrivals.CameSince({3, 2}, Tier::kSsd, second));
  arrivals.WatchNoLonger();
  CHECK_FALSE(arrivals.has_leftovers());
  arrivals.WatchNoLonger();
  CHECK(arrivals.has_leftovers());
  arrivals.DropLeftover();
  CHECK_FALSE(arrivals.has_leftovers());
}

TEST_CASE("what was cleared before the disk told of it is known until it has told all") {
  UntoldClears clears;
  clears.Cleared(SpaceId{1}, KeyNumbered(1));
  clears.ClearedPrompt(SpaceId{1}, KeyNumbered(2));
  CHECK(clears.Takes(SpaceId{1}, KeyNumbered(1)));
  CHECK_FALSE(clears.TakesChildrenOf(SpaceId{1}, KeyNumbered(1)));
  CHECK(clears.Takes(SpaceId{1}, KeyNumbered(2)));
  CHECK(clears.TakesChildrenOf(SpaceId{1}, KeyNumbered(2)));
  CHECK_FALSE(clears.Takes(SpaceId{2}, KeyNumbered(1)));
  clears.AllTold();
  CHECK_FALSE(clears.Takes(SpaceId{1}, KeyNumbered(2)));
  clears.ClearedAll();
  clears.AllTold();
  CHECK(clears.Takes(SpaceId{2}, KeyNumbered(9)));  // what turns up all the same
}

TEST_CASE("the gate loads as far as it gains most, with tiers that read beside each other") {
  Gate gate;
  LearnedCost computing;
  for (uint32_t n = 1; n <= LearnedCost::kEnough; ++n) {
    gate.Learn({.bytes = MiB(n), .took = absl::Milliseconds(10 * n), .from = Tier::kSsd});
    computing.Learn(n, 0, 0.015 * n);  // 15 ms a chunk, wherever it is
  }
  REQUIRE(gate.known());
  Gate::Waits waits;
  waits.from = 2;
  waits.to_read.assign(6, {});
  const auto all = [&](Bytes ssd, Bytes remote) {
    for (uint32_t at = 2; at < 6; ++at) waits.to_read[at] = {Bytes{}, ssd, remote};
  };
  all(MiB(1), {});  // 10 ms each
  CHECK(gate.Best(computing, waits, {}) == 6);
  all(MiB(2), {});  // 20 ms each
  CHECK(gate.Best(computing, waits, {}) == 2);
  all(MiB(1), {});
  CHECK(gate.Best(computing, waits, {Bytes{}, MiB(1), Bytes{}}) == 6);  // 10 ms to wait first: made up for by the third
  CHECK(gate.Best(computing, waits, {Bytes{}, MiB(3), Bytes{}}) == 2);
  all({}, MiB(100));  // nobody knows what that costs
  CHECK(gate.Best(computing, waits, {}) == 6);
  for (uint32_t n = 1; n <= LearnedCost::kEnough; ++n)
    gate.Learn({.bytes = MiB(n), .took = absl::Milliseconds(10 * n), .from = Tier::kRemote});
  all(MiB(1), MiB(1));  // beside each other: the slower one counts, not both
  CHECK(gate.Best(computing, waits, {}) == 6);
}

}  // namespace
}  // namespace kvist::core
