// Clears of one tier: what the others have stays.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

// Whether a clear is of the prompt or of its whole space.
bool OfSpace() { return GENERATE(false, true); }

}  // namespace

TEST_CASE("A clear of DRAM leaves what lies below, and what lies nowhere else is gone") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Do(RemoteReachable{false});
  node.Keep(KeysOf({1, 2}));
  node.Flush();
  node.Keep(keys);
  REQUIRE(node.rows.size() == 2);
  const Job job = node.Clear(Tier::kDram, keys, of_space);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 4);
  CHECK(job.bytes == KiB(16));
  CHECK(job.left == 0);
  CHECK(node.f.slots->live_slots() == 0);
  CHECK(node.Hits(keys) == 2);
  CHECK(node.rows.size() == 2);
}

TEST_CASE("A clear of DRAM leaves what is in use there") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Keep(keys);
  const LeaseId lease = node.f.Lookup(node.worker, KeysOf({1, 2}), absl::Seconds(10)).lease;
  REQUIRE(lease);
  const Job job = node.Clear(Tier::kDram, keys, of_space);
  CHECK(job.chunks == 2);
  CHECK(job.left > 0);
  CHECK(node.f.slots->live_slots() == 2);
  CHECK(node.f.Load(node.worker, lease, 0, 2).has_value());
}

TEST_CASE("A clear of the disk leaves what lies in DRAM, and no restart finds the rest") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.rows.size() == 4);
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kSsd});
  node.Rest();
  node.Do(LookupAsked{node.worker, RequestTag{1}, KeysOf({1, 2}), absl::Seconds(1)});
  node.EndReads();
  REQUIRE(node.f.slots->live_slots() == 2);
  const Job job = node.Clear(Tier::kSsd, keys, of_space);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 4);
  CHECK(node.rows.empty());
  CHECK(node.Hits(keys) == 2);
  CHECK(node.f.slots->live_slots() == 2);
  CHECK(node.f.core->status().below == 0);
  node.Flush();  // it may be written anew
  CHECK(node.rows.size() == 2);
}

TEST_CASE("A clear of the disk that is cancelled has hidden what it has dropped, and nothing else") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3, 4, 5, 6, 7, 8});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.Flush();
  node.Do(TierClearAsked{.job = JobId{++node.jobs},
                         .tier = Tier::kSsd,
                         .space = SpaceId{0},
                         .keys = of_space ? std::span<const ChunkKey>() : std::span<const ChunkKey>(keys)});
  node.Do(Tick{node.f.now});
  node.Do(JobCancelAsked{JobId{node.jobs}});
  node.Rest();
  CHECK(node.rows.size() == keys.size() - node.f.core->jobs().Find(JobId{node.jobs})->chunks);
  node.Flush();
  CHECK(node.rows.size() == keys.size());
}

TEST_CASE("A clear of the disk waits for what is being read there") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kSsd});
  node.Rest();
  node.Do(LookupAsked{node.worker, RequestTag{1}, keys, absl::Seconds(1)});
  node.Rest();
  REQUIRE(node.reads.size() == 2);
  CHECK(node.Clear(Tier::kSsd, keys, of_space).state == JobState::kRunning);
  node.EndReads();
  CHECK(node.f.core->jobs().Find(JobId{node.jobs})->state == JobState::kDone);
  CHECK(node.rows.empty());
  CHECK(node.Hits(keys) == 2);
}

TEST_CASE("What couldn't be read stays on disk for a later daemon, unless it is cleared") {
  ThreeTiers node;
  const bool of_space = OfSpace(), damaged = GENERATE(false, true), of_all_tiers = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kSsd});
  node.Rest();
  node.Do(LookupAsked{node.worker, RequestTag{1}, keys, absl::Seconds(1)});
  node.EndReads(damaged ? absl::DataLossError("torn") : absl::UnavailableError("EIO"));
  CHECK(node.Hits(keys) == 0);
  CHECK(node.rows.size() == (damaged ? 0 : 3));
  if (!of_all_tiers) {
    CHECK(node.Clear(Tier::kSsd, keys, of_space).state == JobState::kDone);
  } else {
    node.Do(RemoteReachable{true});
    if (of_space) node.Do(ClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}});
    if (!of_space) node.Do(PromptClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys});
    node.Rest();
    CHECK(node.f.core->jobs().Find(JobId{node.jobs})->state == JobState::kDone);
  }
  CHECK(node.rows.empty());
}

TEST_CASE("A clear that the disk can't make durable hides all the same, but isn't done") {
  ThreeTiers node;
  const bool of_space = OfSpace(), of_all_tiers = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.keeps = absl::UnavailableError("the catalog's disk fails");
  const auto clear = [&] {
    if (!of_all_tiers) return node.Clear(Tier::kSsd, keys, of_space);
    if (of_space) node.Do(ClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}});
    if (!of_space) node.Do(PromptClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys});
    node.Rest();
    return *node.f.core->jobs().Find(JobId{node.jobs});
  };
  const Job job = clear();
  CHECK(job.state == JobState::kCancelled);
  CHECK(job.trouble == "it is gone from this kvistd, but not durably: the catalog's disk fails");
  CHECK(job.lost == TierBit(Tier::kSsd));
  CHECK(job.chunks == 3);
  if (of_all_tiers) CHECK(node.Hits(keys) == 0);
  node.keeps = absl::OkStatus();
  CHECK(clear().state == JobState::kDone);
}

TEST_CASE("A clear of the disk waits for what is being written there: nothing that it dropped counts as durable") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.hold_writes = true;
  node.Flush();
  REQUIRE(!node.writes.empty());
  node.hold_writes = false;
  const Job job = node.Clear(Tier::kSsd, keys, of_space);
  CHECK(job.state == JobState::kRunning);
  node.EndWrites();
  CHECK(node.f.core->jobs().Find(job.id)->state == JobState::kDone);
  node.Flush();
  CHECK(node.rows.size() == 4);
}

TEST_CASE("A clear of the disk before it has told all waits for that, and hides what is in DRAM as well") {
  CoreFixture f(ThreeTiersOptions());
  const SessionId worker = f.Worker("engine", SpaceNamed("model", {KiB(4)}));
  const auto keys = KeysOf({1, 2});
  f.Store(worker, keys);
  const bool of_space = OfSpace();
  std::vector<ChunksHidden> hidden;
  const auto hear = [&hidden](Effects effects) {
    for (Effect& effect : effects) {
      if (auto* of = std::get_if<ChunksHidden>(&effect)) hidden.push_back(std::move(*of));
    }
  };
  const auto rest = [&] {
    for (int i = 0; i < 20; ++i) hear(f.PassTime(absl::ZeroDuration()));
  };
  hear(f.Do(TierClearAsked{.job = JobId{1},
                           .tier = Tier::kSsd,
                           .space = SpaceId{0},
                           .keys = of_space ? std::span<const ChunkKey>() : std::span<const ChunkKey>(keys)}));
  rest();
  size_t chunks = 0;
  for (const ChunksHidden& of : hidden) chunks += of.chunks.size();
  CHECK(chunks == (of_space ? 0 : 2));
  const size_t before = hidden.size();
  for (size_t i = 0; i < before; ++i) hear(f.Do(ClearKept{JobId{1}}));
  rest();
  CHECK(f.core->jobs().Find(JobId{1})->state == JobState::kRunning);
  hear(f.Do(DiskTold{}));
  rest();
  REQUIRE(hidden.size() == before + 1);
  CHECK(hidden.back().chunks.empty());
  CHECK(f.core->jobs().Find(JobId{1})->state == JobState::kRunning);
  hear(f.Do(ClearKept{JobId{1}}));
  rest();
  CHECK(f.core->jobs().Find(JobId{1})->state == JobState::kDone);
}

TEST_CASE("A clear of the store beyond the node doesn't take for there what was written before it") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3, 4});
  node.hold_writes = true;
  node.Keep(keys);
  REQUIRE(!node.writes.empty());
  node.hold_writes = false;
  const Job job = node.Clear(Tier::kRemote, keys, true);
  CHECK(job.state == JobState::kRunning);
  node.EndWrites();
  CHECK(node.f.core->jobs().Find(job.id)->state == JobState::kDone);
  node.store.clear();  // what came late has a name that nobody asks for
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kRemote});
  node.Rest();
  CHECK(node.store.size() == 4);
}

TEST_CASE("A clear of a prompt waits for a store beyond the node that couldn't be told, and others have their turn") {
  ThreeTiers node;
  const bool of_tier = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  REQUIRE(node.store.size() == 3);
  node.store_forgets = false;
  const JobId id{++node.jobs};
  if (of_tier) {
    node.Do(TierClearAsked{.job = id, .tier = Tier::kRemote, .space = SpaceId{0}, .keys = keys});
    node.Do(TierClearAsked{.job = JobId{++node.jobs}, .tier = Tier::kDram, .space = SpaceId{0}});
  } else {
    node.Do(PromptClearAsked{id, SpaceId{0}, keys});
    CHECK(node.Clear(Tier::kDram, {}, /*of_space=*/true).state == JobState::kDone);
  }
  node.Rest();
  const auto job = [&] { return *node.f.core->jobs().Find(id); };
  // What the store still has isn't found there, and nothing of that name is written.
  const auto finds = [&] {
    node.Do(LookupAsked{node.worker, RequestTag{++node.tags}, keys, absl::Seconds(1)});
    return !node.reads.empty();
  };
  const auto pass = [&](absl::Duration time) {
    node.Do(Tick{node.f.now += time});
    node.Rest();
  };
  CHECK(node.f.core->jobs().Find(JobId{node.jobs})->state == JobState::kDone);
  CHECK(job().state == JobState::kRunning);
  CHECK(job().trouble.find("it is away") != std::string::npos);
  CHECK(node.store.size() == 3);
  CHECK_FALSE(finds());
  SECTION("it comes back") {
    node.Do(RemoteReachable{false});
    CHECK_FALSE(node.f.core->waits_for_clock());
    pass(absl::Hours(1));
    REQUIRE(job().state == JobState::kRunning);
    node.store_forgets = true;
    node.Do(RemoteReachable{true});
    node.Rest();
    CHECK(job().state == JobState::kDone);
  }
  SECTION("it was there all the time") {
    CHECK(node.f.core->waits_for_clock());
    for (int i = 0; i < 3; ++i) pass(absl::Minutes(2));
    REQUIRE(job().state == JobState::kRunning);
    node.store_forgets = true;
    pass(absl::Minutes(2));
    CHECK(job().state == JobState::kDone);
  }
  SECTION("it is cancelled") {
    node.Do(JobCancelAsked{id});
    node.Rest();
    CHECK(job().state == JobState::kCancelled);
    CHECK(finds());
    return;
  }
  CHECK(job().trouble.empty());
  CHECK(node.store.empty());
  CHECK_FALSE(finds());
  node.Keep(keys);  // and is written there again
  CHECK(node.store.size() == 3);
}

TEST_CASE("A clear that the disk can't make durable still says so when the store beyond the node has been told at last") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.keeps = absl::UnavailableError("the catalog's disk fails");
  node.store_forgets = false;
  const JobId id{++node.jobs};
  node.Do(PromptClearAsked{id, SpaceId{0}, keys});
  node.Rest();
  REQUIRE(node.f.core->jobs().Find(id)->state == JobState::kRunning);
  node.store_forgets = true;
  node.Do(RemoteReachable{true});
  node.Rest();
  const Job* const job = node.f.core->jobs().Find(id);
  CHECK(job->state == JobState::kCancelled);
  CHECK(job->trouble == "it is gone from this kvistd, but not durably: the catalog's disk fails");
  CHECK(node.store.empty());
}

TEST_CASE("A move to a store beyond the node that is away doesn't wait for what that is to forget") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.store_forgets = false;
  const Tier from = GENERATE(Tier::kDram, Tier::kSsd);
  REQUIRE(node.Clear(Tier::kRemote, keys, /*of_space=*/false).state == JobState::kRunning);
  node.Do(RemoteReachable{false});
  const Job job = node.Move(from, Tier::kRemote, keys);
  CHECK(job.state == JobState::kDone);
  CHECK(job.left == 3);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE("A clear of the store beyond the node leaves what is here, and nobody finds it there") {
  ThreeTiers node;
  const bool of_space = OfSpace();
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.store.size() == 3);
  node.store.insert(KeyOf(9));  // another node's
  const Job job = node.Clear(Tier::kRemote, KeysOf({1, 2, 3, 9}), of_space);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 3);
  CHECK(node.store.empty());
  CHECK(node.rows.size() == 3);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE("A clear of the store beyond the node takes along what was offered to it before") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Do(RemoteReachable{false});
  node.Keep(keys);
  node.Clear(Tier::kRemote, keys, /*of_space=*/true);
  node.Do(RemoteReachable{true});
  node.Rest();
  CHECK(node.store.empty());
  node.Keep(KeysOf({7}));
  CHECK(node.store.size() == 1);
}

TEST_CASE("A clear of one tier goes through all spaces when it names none") {
  ThreeTiers node;
  node.Do(RemoteReachable{false});
  const SessionId other = node.f.Worker("other", SpaceNamed("other", {KiB(4)}));
  REQUIRE(node.f.Keep(other, KeysOf({1, 2})) == 2);
  node.Keep(KeysOf({1, 2, 3}));
  node.Do(TierClearAsked{.job = JobId{1}, .tier = Tier::kDram});
  node.Rest();
  CHECK(node.f.core->jobs().Find(JobId{1})->chunks == 5);
  CHECK(node.f.slots->live_slots() == 0);
}

}  // namespace kvist::core
