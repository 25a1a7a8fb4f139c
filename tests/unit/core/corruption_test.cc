#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

// A load of `keys`[first, first + count) that ends with these of its slots corrupt.
Effects LoadCorrupt(CoreFixture& f, SessionId worker, LeaseId lease, uint32_t first, uint32_t count,
                    std::vector<uint32_t> corrupt) {
  const std::optional<CopyStarted> load = f.Load(worker, lease, first, count);
  REQUIRE(load.has_value());
  return f.Do(CopyFinished{load->op, absl::DataLossError("checksum"), std::move(corrupt)});
}

struct OneEngine {
  CoreFixture f{[] {
    CoreFixture::Options options;
    options.slabs = 4;
    return options;
  }()};
  SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  const std::vector<ChunkKey> keys = KeysOf({1, 2, 3, 4, 5});
  OneEngine() { REQUIRE(f.Keep(worker, keys) == 5); }
};

TEST_CASE("Core drops a chunk that isn't what was stored, says so once, and finds what lies before it") {
  OneEngine e;
  const LeaseId lease = e.f.Lookup(e.worker, e.keys, absl::Seconds(10)).lease;
  const Effects effects = LoadCorrupt(e.f, e.worker, lease, 0, 5, {2});
  REQUIRE(effects.size() == 2);
  CHECK(std::get<CorruptionFound>(effects[0]).chunks == 1);
  CHECK(std::get<CorruptionFound>(effects[0]).tier == Tier::kDram);
  CHECK(absl::IsDataLoss(std::get<OpEnded>(effects[1]).status));
  CHECK(std::get<OpEnded>(effects[1]).copied == 0);
  CHECK(e.f.Lookup(e.worker, e.keys).chunks == 2);
  // The lease still says what it said: a load of it is tried, fails again, and counts no more.
  const Effects again = LoadCorrupt(e.f, e.worker, lease, 2, 1, {0});
  REQUIRE(again.size() == 1);
  CHECK(absl::IsDataLoss(std::get<OpEnded>(again[0]).status));
  CHECK(e.f.core->status().chunks_corrupt == 1);
}

TEST_CASE("Core stores what was dropped, and all that stood on it, again") {
  OneEngine e;
  const bool leased = GENERATE(true, false);
  const LeaseId lease = e.f.Lookup(e.worker, e.keys, absl::Seconds(10)).lease;
  LoadCorrupt(e.f, e.worker, lease, 0, 5, {1, 3});
  CHECK(e.f.core->status().chunks_corrupt == 2);
  if (!leased) e.f.Do(ReleaseAsked{e.worker, lease});
  CHECK(e.f.Lookup(e.worker, e.keys).chunks == 1);
  CHECK(e.f.Keep(e.worker, e.keys) == 4);
  CHECK(e.f.Lookup(e.worker, e.keys).chunks == 5);
  if (leased) e.f.Do(ReleaseAsked{e.worker, lease});
  CHECK(e.f.slots->live_slots() == 5);  // what was dropped is gone
  CHECK(e.f.Lookup(e.worker, e.keys).chunks == 5);
}

TEST_CASE("Core stores nothing under a chunk whose parent was dropped") {
  OneEngine e;
  const LeaseId lease = e.f.Lookup(e.worker, e.keys, absl::Seconds(10)).lease;
  LoadCorrupt(e.f, e.worker, lease, 0, 5, {3});
  CHECK_FALSE(e.f.Store(e.worker, KeysOf({6}), KeyOf(5)).has_value());
  CHECK(e.f.ended->refused == 1);
}

TEST_CASE("Core drops the last chunk of a chain, and one alone, with their slots") {
  OneEngine e;
  const LeaseId lease = e.f.Lookup(e.worker, e.keys, absl::Seconds(10)).lease;
  LoadCorrupt(e.f, e.worker, lease, 4, 1, {0});
  CHECK(e.f.Lookup(e.worker, e.keys).chunks == 4);
  CHECK(e.f.slots->live_slots() == 5);  // leased
  e.f.Do(ReleaseAsked{e.worker, lease});
  CHECK(e.f.slots->live_slots() == 4);
}

TEST_CASE("Core drops chunks that a clear has left behind, or a dead session loads, without trouble") {
  OneEngine e;
  const LeaseId lease = e.f.Lookup(e.worker, e.keys, absl::Seconds(10)).lease;
  const CopyStarted one = *e.f.Load(e.worker, lease, 0, 5), two = *e.f.Load(e.worker, lease, 1, 2);
  e.f.Do(ClearAsked{.job = JobId{1}});
  e.f.PassTime(absl::Milliseconds(1));
  e.f.Do(CopyFinished{one.op, absl::DataLossError("checksum"), {0, 4}});
  CHECK(e.f.core->status().chunks_corrupt == 0);  // they had gone
  e.f.Do(SessionClosed{e.worker});
  e.f.Do(CopyFinished{two.op, absl::DataLossError("checksum"), {1}});
  e.f.PassTime(absl::ZeroDuration());
  CHECK(e.f.slots->live_slots() == 0);
  CHECK(e.f.core->status().chunks == 0);
}

TEST_CASE("Core drops the chunks of a group that isn't chained one by one") {
  CoreFixture f;
  SpaceSpec space = SpaceNamed("space", {KiB(4)});
  space.groups[0].reuse = {GroupKind::kWindow, 3};
  const SessionId worker = f.Worker("engine", space);
  const std::vector<ChunkKey> keys = KeysOf({1, 2, 3, 4});
  REQUIRE(f.Keep(worker, keys) == 4);
  const LookupAnswered hit = f.Lookup(worker, keys, absl::Seconds(10));
  REQUIRE(hit.chunks == 4);
  const ReuseRule& reuse = space.groups[0].reuse;
  const uint32_t first = reuse.FirstNeeded(4), count = 4 - first;
  REQUIRE(count >= 2);
  LoadCorrupt(f, worker, hit.lease, first, count, {count - 2});  // the third chunk
  CHECK(f.core->status().chunks_corrupt == 1);
  CHECK(f.Lookup(worker, keys).chunks < 4);
  f.Do(ReleaseAsked{worker, hit.lease});
  CHECK(f.slots->live_slots() == 3);
  CHECK(f.Keep(worker, {keys[2]}) == 1);
  CHECK(f.Lookup(worker, keys).chunks == 4);
}

TEST_CASE("Core drops a chunk that isn't on disk what was stored, and says that it was there") {
  CoreFixture::Options options;
  options.slabs = 4;
  options.core.disk = CoreOptions::Disk{};
  CoreFixture f{options};
  const SpaceSpec space = SpaceNamed("space", {KiB(4)});
  const std::vector<ChunkKey> keys = KeysOf({1, 2});
  f.Do(SpaceFound{space});
  f.Do(ChunksFound{*f.core->FindSpace(space.digest),
                   {{GroupId{}, keys[0], {}, 0, {{1, 1}}}, {GroupId{}, keys[1], keys[0], 1, {{1, 2}}}}});
  const SessionId worker = f.Worker("engine", space);
  const Effects asked = f.Do(LookupAsked{worker, RequestTag{900}, keys, absl::Seconds(10)});
  std::vector<ReadStarted> reads;
  LeaseId lease;
  for (const Effect& effect : asked) {
    if (const auto* read = std::get_if<ReadStarted>(&effect)) reads.push_back(*read);
    if (const auto* answer = std::get_if<LookupAnswered>(&effect)) lease = answer->lease;
  }
  REQUIRE(reads.size() == 2);
  f.Do(LoadAsked{worker, RequestTag{901}, lease, {}, 0, 2});
  CHECK(f.core->status().loads_waited == 2);
  const bool damaged = GENERATE(true, false);
  for (const ReadStarted& read : reads) {
    const bool second = read.key == keys[1];
    absl::Status status;
    if (second) status = damaged ? absl::DataLossError("torn") : absl::UnavailableError("EIO");
    const Effects effects = f.Do(ReadFinished{read.chunk, status});
    size_t said = 0;
    for (const Effect& effect : effects) {
      const auto* found = std::get_if<CorruptionFound>(&effect);
      if (found == nullptr) continue;
      ++said;
      CHECK(found->tier == Tier::kSsd);
      CHECK(found->chunks == 1);
    }
    CHECK(said == (second && damaged ? 1 : 0));
  }
  CHECK(f.Lookup(worker, keys).chunks == 1);
  const CoreStatus status = f.core->status();
  CHECK(status.chunks_corrupt == 0);
  CHECK(status.chunks_corrupt_on_disk == (damaged ? 1 : 0));
  CHECK(status.reads_failed == 1);
  CHECK(status.chunks_read == 1);
}

TEST_CASE("Core fails a swap of private slots that aren't what was taken out, counts it, and frees them as ever") {
  OneEngine e;
  const Effects allocated = e.f.Do(AllocateAsked{e.worker, RequestTag{900}, {}, 2});
  const AllocationId id = std::get<Answered>(allocated.at(0)).allocation;
  REQUIRE(id);
  const auto swap = [&](Direction direction) {
    const Effects effects = e.f.Do(SwapAsked{e.worker, RequestTag{901}, direction, id, {}, 0, 2, 0, 1});
    return std::get<CopyStarted>(effects.at(0)).op;
  };
  e.f.Finish(swap(Direction::kStore));
  const Effects effects = e.f.Do(CopyFinished{swap(Direction::kLoad), absl::DataLossError("checksum"), {1}});
  REQUIRE(effects.size() == 2);
  CHECK(std::get<CorruptionFound>(effects[0]).chunks == 1);
  CHECK(absl::IsDataLoss(std::get<OpEnded>(effects[1]).status));
  CHECK(e.f.core->status().chunks_corrupt == 1);
  CHECK(e.f.slots->live_slots() == 7);
  e.f.Do(FreeAsked{e.worker, id});
  CHECK(e.f.slots->live_slots() == 5);
}

}  // namespace
}  // namespace kvist::core
