// Jobs that are asked for again after a restart: before any engine comes, and before the disk has told what it has.
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

const SpaceSpec kSpaceOfJobs = SpaceNamed("model", {KiB(4)});

// A core at its start, which knows of the space from nobody but its jobs.
struct Started {
  Started() : f(ThreeTiersOptions()) { f.Do(SpaceFound{kSpaceOfJobs}); }

  // What the disk has from before.
  Effects Tell(const std::vector<ChunkKey>& keys) {
    ChunksFound found{SpaceId{0}, {}};
    for (uint32_t k = 0; k < keys.size(); ++k) {
      found.chunks.push_back({GroupId{}, keys[k], std::nullopt, k, {{1, k}}});
      if (k > 0) found.chunks.back().parent = keys[k - 1];
    }
    return f.Do(found);
  }
  // Ticks until nothing is left to do, and says that all clears are durable.
  void Rest() {
    while (f.core->has_work()) {
      for (const Effect& effect : f.PassTime(absl::ZeroDuration())) Hear(effect);
    }
  }
  void Do(const auto& event) {
    for (const Effect& effect : f.Do(event)) Hear(effect);
  }
  void Hear(const Effect& effect) {
    if (const auto* hidden = std::get_if<ChunksHidden>(&effect)) f.Do(ClearKept{hidden->job});
    if (const auto* forgotten = std::get_if<RemoteForgotten>(&effect))
      f.Do(RemoteForgot{forgotten->job, forgotten->space, forgotten->keys});
    if (const auto* cleared = std::get_if<SpaceCleared>(&effect)) {
      for (const Tier tier : {Tier::kSsd, Tier::kRemote}) {
        if (cleared->tier.value_or(tier) == tier) f.Do(ClearKept{cleared->job, tier});
      }
    }
  }
  const Job& job() const { return *f.core->jobs().Find(JobId{7}); }

  CoreFixture f;
};

}  // namespace

TEST_CASE("A clear that goes on takes what the disk has from before, and nothing that engines have stored since") {
  Started node;
  const auto keys = KeysOf({1, 2, 3});
  SECTION("of the space") { node.Do(ClearAsked{JobId{7}, SpaceId{0}, "name", true}); }
  SECTION("of all") { node.Do(ClearAsked{JobId{7}, std::nullopt, "name", true}); }
  SECTION("of the prompt") { node.Do(PromptClearAsked{JobId{7}, SpaceId{0}, keys, "name", true}); }
  SECTION("of the disk") { node.Do(TierClearAsked{JobId{7}, Tier::kSsd, SpaceId{0}, {}, "name", true}); }
  SECTION("of the prompt on disk") { node.Do(TierClearAsked{JobId{7}, Tier::kSsd, SpaceId{0}, keys, "name", true}); }
  CHECK(node.job().resumed);
  const SessionId worker = node.f.Worker("engine", kSpaceOfJobs);
  REQUIRE(node.f.Keep(worker, KeysOf({1, 2})) == 2);
  node.Tell(keys);
  CHECK(node.f.Lookup(worker, keys).chunks == 2);
  node.Do(DiskTold{});
  node.Rest();
  CHECK(node.job().state == JobState::kDone);
  CHECK(node.job().request == "name");
  CHECK(node.f.Lookup(worker, keys).chunks == 2);
}

TEST_CASE("A clear of a prompt that goes on takes what hung on it, too, and not what hangs on what was stored since") {
  Started node;
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Do(PromptClearAsked{JobId{7}, SpaceId{0}, KeysOf({1, 2}), "name", true});
  node.Rest();
  CHECK(node.job().state == JobState::kRunning);  // the disk may have more of it
  const SessionId worker = node.f.Worker("engine", kSpaceOfJobs);
  REQUIRE(node.f.Keep(worker, KeysOf({1, 2})) == 2);
  node.Tell(keys);
  CHECK(node.f.Lookup(worker, keys).chunks == 2);
  node.Do(DiskTold{});
  node.Rest();
  CHECK(node.job().state == JobState::kDone);
  CHECK(node.f.Lookup(worker, keys).chunks == 2);
}

TEST_CASE("A move to or from the disk waits until that has told all") {
  Started node;
  const auto keys = KeysOf({1, 2, 3});
  const bool resumed = GENERATE(false, true);
  node.Do(DiskWritable{true});
  node.Do(MoveAsked{.job = JobId{7}, .space = SpaceId{0}, .keys = keys, .resumed = resumed});
  node.Rest();
  node.Tell(keys);
  node.Rest();
  CHECK(node.job().state == JobState::kRunning);
  std::vector<ReadStarted> reads;
  node.Do(DiskTold{});
  while (node.f.core->has_work()) {
    for (Effect& effect : node.f.PassTime(absl::ZeroDuration())) {
      if (auto* read = std::get_if<ReadStarted>(&effect)) reads.push_back(std::move(*read));
    }
  }
  CHECK(reads.size() == 3);
  for (const ReadStarted& read : reads) node.Do(ReadFinished{read.chunk, absl::OkStatus()});
  node.Rest();
  CHECK(node.job().state == JobState::kDone);
  CHECK(node.job().chunks == 3);
  CHECK(node.job().resumed == resumed);
}

TEST_CASE("A job that goes on waits for a store that isn't reachable yet, and not for ever") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2});
  node.Keep(keys);
  node.Do(RemoteReachable{false});
  node.store.clear();
  node.Do(ClearAsked{JobId{++node.jobs}, std::nullopt});
  node.Rest();
  node.Keep(keys);
  const JobId job{++node.jobs};
  const MoveAsked move{
      .job = job, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kRemote, .resumed = true};
  node.Do(move);
  node.Rest();
  REQUIRE(node.f.core->jobs().Find(job)->state == JobState::kRunning);
  CHECK(node.f.core->waits_for_clock());
  SECTION("it comes") {
    node.Do(RemoteReachable{true});
    node.Rest();
    CHECK(node.f.core->jobs().Find(job)->chunks == 2);
    CHECK(node.store.size() == 2);
  }
  SECTION("it doesn't") {
    node.Do(Tick{node.f.now += ThreeTiersOptions().core.remote->awaited});
    node.Rest();
    CHECK(node.f.core->jobs().Find(job)->left == 2);
    CHECK_FALSE(node.f.core->waits_for_clock());
  }
  CHECK(node.f.core->jobs().Find(job)->state == JobState::kDone);
}

TEST_CASE("A clear of one tier that has waited for its turn leaves what came there since it was asked for") {
  ThreeTiers node;
  const bool of_space = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Do(RemoteReachable{false});
  node.Keep(KeysOf({1, 2}));
  node.Flush();
  REQUIRE(node.rows.size() == 2);
  // Another one before it, which waits.
  node.Do(MoveAsked{.job = JobId{++node.jobs},
                    .space = SpaceId{0},
                    .keys = keys,
                    .from = Tier::kDram,
                    .to = Tier::kRemote,
                    .resumed = true});
  const Tier tier = GENERATE(Tier::kSsd, Tier::kDram);
  REQUIRE(node.Clear(tier, keys, of_space).state == JobState::kRunning);
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.rows.size() == 4);
  node.Do(Tick{node.f.now += ThreeTiersOptions().core.remote->awaited});
  node.Rest();
  const Job& job = *node.f.core->jobs().Find(JobId{node.jobs});
  CHECK(job.state == JobState::kDone);
  if (tier == Tier::kSsd) {
    CHECK(job.chunks == 2);
    CHECK(node.rows == std::set<ChunkKey>{KeyOf(3), KeyOf(4)});
  } else {
    CHECK(node.f.slots->live_slots() >= 2);
    CHECK(node.rows.size() == 4);
  }
  CHECK(node.Hits(keys) == 4);
}

TEST_CASE("A core lists jobs of an earlier one, whose spaces it may not know") {
  CoreFixture f;
  Job ended{
      .id = JobId{5}, .request = "name", .kind = JobKind::kMove, .state = JobState::kDone, .digest = kSpaceOfJobs.digest};
  f.core->Remember(ended);
  CHECK(f.core->jobs().OfRequest("name")->id == JobId{5});
  CHECK(f.core->jobs().OfRequest("name", kSpaceOfJobs.digest)->id == JobId{5});
  CHECK(f.core->jobs().OfRequest("name", SpaceNamed("other", {KiB(4)}).digest) == nullptr);
}

}  // namespace kvist::core
