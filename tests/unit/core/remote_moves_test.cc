// Moves from a store beyond the node, to slots and to disk.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <vector>

#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

Job MoveFromStore(ThreeTiers& node, Tier to, const std::vector<ChunkKey>& keys, bool keep_source = false) {
  return node.Move(Tier::kRemote, to, keys, keep_source);
}

}  // namespace

TEST_CASE("A prompt that only the store beyond the node has is moved to slots, and the store has it no more") {
  ThreeTiers node;
  const bool keep_source = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3, 4});
  node.store = {keys.begin(), keys.begin() + 3};
  node.store.insert(KeyOf(9));
  const Job& job = MoveFromStore(node, Tier::kDram, keys, keep_source);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 3);
  CHECK(job.bytes == KiB(12));
  CHECK(job.left == 0);
  CHECK(job.trouble.empty());
  CHECK(node.Hits(keys) == 3);
  CHECK(node.f.slots->live_slots() == 3);
  CHECK(node.store.size() == (keep_source ? 4 : 1));
  // Again: there is nothing to do.
  const Job& again = MoveFromStore(node, Tier::kDram, keys, keep_source);
  CHECK(again.chunks == 0);
  CHECK(again.already == 3);
}

TEST_CASE("A prompt that only the store beyond the node has is moved to disk, through slots") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.store = {keys.begin(), keys.end()};
  const Job& job = MoveFromStore(node, Tier::kSsd, keys);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 3);
  CHECK(node.rows.size() == 3);
  CHECK(node.store.empty());
  CHECK(node.f.slots->live_slots() == 0);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE("A move from the store beyond the node takes no more room than a lease may, and the rest stays there") {
  ThreeTiers node;  // 16 slots
  std::vector<ChunkKey> keys;
  for (uint64_t n = 0; n < 20; ++n) keys.push_back(KeyOf(n));
  node.store = {keys.begin(), keys.end()};
  const Job& job = MoveFromStore(node, Tier::kDram, keys);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 16);
  CHECK(job.left == 4);
  CHECK(node.store == std::set<ChunkKey>(keys.begin() + 16, keys.end()));
}

TEST_CASE("A move from the store beyond the node asks again where something was forgotten meanwhile, but not for ever") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.store = {keys.begin(), keys.end()};
  node.in_vain = 3;
  const Job& moved = MoveFromStore(node, Tier::kDram, keys);
  CHECK(moved.chunks == 3);
  CHECK(moved.left == 0);
  CHECK(moved.trouble.empty());
  CHECK(node.asks >= 4);
  node.store = {KeyOf(7), KeyOf(8)};
  node.asks = 0;
  node.in_vain = 1000;
  const Job& job = MoveFromStore(node, Tier::kDram, KeysOf({7, 8}));
  CHECK(job.state == JobState::kDone);
  CHECK(job.left == 2);
  CHECK(job.done == job.total);
  CHECK_FALSE(job.trouble.empty());
  CHECK(node.asks < 20);
  CHECK(node.store.size() == 2);
}

TEST_CASE("A move from the store beyond the node leaves there what hangs on a chunk that it hasn't") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3, 4});
  node.store = {keys[0], keys[1], keys[3]};
  const Job& job = MoveFromStore(node, Tier::kDram, keys);
  CHECK(job.chunks == 2);
  CHECK(job.left == 1);
  CHECK(node.store == std::set<ChunkKey>{keys[3]});
}

TEST_CASE("A move from the store beyond the node writes nothing to disk that was cleared meanwhile") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.store.insert(keys.begin(), keys.end());
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kRemote, .to = Tier::kSsd});
  node.Rest();
  REQUIRE(!node.reads.empty());
  node.Do(ClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}});
  node.EndReads();
  CHECK(node.rows.empty());
  CHECK(node.f.core->jobs().Find(JobId{node.jobs})->state == JobState::kDone);
}

TEST_CASE("A prompt that only the disk has is moved to the store beyond the node, through slots") {
  ThreeTiers node;
  const bool keep_source = GENERATE(false, true);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.store.clear();
  REQUIRE(node.Move(Tier::kDram, Tier::kSsd, keys).chunks == 3);
  node.ForgetStore(keys);
  REQUIRE(node.rows.size() == 3);
  REQUIRE(node.store.empty());
  REQUIRE(node.f.slots->live_slots() == 0);
  const Job& job = node.Move(Tier::kSsd, Tier::kRemote, keys, keep_source);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 3);
  CHECK(job.bytes == KiB(12));
  CHECK(job.left == 0);
  CHECK(job.done == job.total);
  CHECK(node.store == std::set<ChunkKey>(keys.begin(), keys.end()));
  CHECK(node.f.slots->live_slots() == 0);
  CHECK(node.Hits(keys) == (keep_source ? 3 : 0));  // it isn't remembered what the store has
  const Job& again = node.Move(Tier::kSsd, Tier::kRemote, keys, keep_source);
  CHECK(again.chunks == 0);
  CHECK(again.already == (keep_source ? 3 : 0));
}

TEST_CASE("A move from disk to the store beyond the node frees the places of what is in slots, too") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.ForgetStore(keys);
  REQUIRE(node.rows.size() == 3);
  REQUIRE(node.f.slots->live_slots() == 3);
  const Job& job = node.Move(Tier::kSsd, Tier::kRemote, keys);
  CHECK(job.chunks == 3);
  CHECK(node.rows.empty());
  CHECK(node.store.size() == 3);
  CHECK(node.f.slots->live_slots() == 3);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE(
    "A move to the store beyond the node frees only what the store says that it has, and writes there what it has lost") {
  ThreeTiers node;
  const Tier from = GENERATE(Tier::kDram, Tier::kSsd);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.store.size() == 3);
  REQUIRE(node.rows.size() == 3);
  node.store.erase(keys[1]);  // it has evicted it, or another node has moved it
  SECTION("it can be asked") {
    const Job& job = node.Move(from, Tier::kRemote, keys);
    CHECK(job.state == JobState::kDone);
    CHECK(job.chunks == 3);
    CHECK(node.store == std::set<ChunkKey>(keys.begin(), keys.end()));
    CHECK((from == Tier::kDram ? node.f.slots->live_slots() : node.rows.size()) == 0);
  }
  SECTION("it doesn't say what it has: all is written again") {
    node.store.clear();
    node.store_answers = false;
    CHECK(node.Move(from, Tier::kRemote, keys).chunks == 3);
    CHECK(node.store.size() == 3);
  }
  SECTION("it is away") {
    node.store.clear();
    node.Do(RemoteReachable{false});
    const Job& job = node.Move(from, Tier::kRemote, keys);
    CHECK(job.state == JobState::kDone);
    CHECK(job.chunks == 0);
    CHECK(job.left == 3);
    CHECK(node.f.slots->live_slots() == 3);
    CHECK(node.rows.size() == 3);
  }
}

TEST_CASE("A move to the store beyond the node frees nothing of a space that is cleared there meanwhile") {
  ThreeTiers node;
  const Tier from = GENERATE(Tier::kDram, Tier::kSsd);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.store.erase(keys[2]);  // the last comes first
  node.hold_writes = true;
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = from, .to = Tier::kRemote});
  node.Rest();
  REQUIRE(node.writes.size() == 1);
  node.hold_writes = false;
  SECTION("by another node") {
    node.Do(RemoteCleared{});
    node.store.clear();
  }
  SECTION("by this one") {
    const bool of_space = GENERATE(false, true);
    node.Clear(Tier::kRemote, keys, of_space);
  }
  node.EndWrites();
  const Job& job = *node.f.core->jobs().Find(JobId{1});
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 0);
  CHECK(job.left == 3);
  CHECK(node.f.slots->live_slots() == 3);
  CHECK(node.rows.size() == 3);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE("What another node has cleared in the store isn't known to be there any more, nor what was being written then") {
  ThreeTiers node;
  const bool of_all = GENERATE(false, true);
  const SpaceSpec other = SpaceNamed("other", {KiB(4)});
  const SessionId others = node.f.Worker("other", other);
  node.Keep(KeysOf({1, 2}));
  node.hold_writes = true;
  node.Keep(KeysOf({1, 2, 3}));
  REQUIRE(node.writes.size() == 1);
  node.hold_writes = false;
  const auto copies = node.f.Do(StoreAsked{others, RequestTag{1}, GroupId{}, std::nullopt, KeysOf({7})});
  for (const Effect& effect : copies) {
    if (const auto* copy = std::get_if<CopyStarted>(&effect)) node.Do(CopyFinished{copy->op, absl::OkStatus()});
  }
  node.Rest();
  const auto there = [&node] {
    std::vector<ChunkWhere> chunks;
    for (uint64_t at = 0; at != Core::kReadAll;) at = node.f.core->ReadChunks(at, 64, &chunks);
    return std::count_if(chunks.begin(), chunks.end(),
                         [](const ChunkWhere& chunk) { return (chunk.tiers & TierBit(Tier::kRemote)) != 0; });
  };
  REQUIRE(there() == 3);
  node.Do(RemoteCleared{of_all ? std::nullopt : std::optional(node.f.core->spec(SpaceId{0}).digest)});
  node.EndWrites();
  CHECK(there() == (of_all ? 0 : 1));
  node.Keep(KeysOf({4}));
  CHECK(there() == (of_all ? 1 : 2));
}

TEST_CASE("A store beyond the node that couldn't be told is said of a clear that waits its turn, too") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.Move(Tier::kDram, Tier::kSsd, keys).chunks == 3);
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kSsd, .to = Tier::kDram});
  node.Rest();
  REQUIRE(!node.reads.empty());  // the move goes on
  node.store_forgets = false;
  const JobId clear{++node.jobs};
  node.Do(PromptClearAsked{.job = clear, .space = SpaceId{0}, .keys = KeysOf({9})});
  node.Rest();
  CHECK_FALSE(node.f.core->jobs().Find(clear)->trouble.empty());
  while (!node.reads.empty()) node.EndReads();
  CHECK(node.f.core->jobs().Find(JobId{clear.value - 1})->state == JobState::kDone);
  CHECK(node.f.core->jobs().Find(clear)->state == JobState::kRunning);
  node.store_forgets = true;
  node.Do(Tick{node.f.now += absl::Minutes(2)});
  node.Rest();
  CHECK(node.f.core->jobs().Find(clear)->state == JobState::kDone);
  CHECK(node.f.core->jobs().Find(clear)->trouble.empty());
}

TEST_CASE("A move from disk to a store beyond the node that is away leaves all where it is") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.Move(Tier::kDram, Tier::kSsd, keys).chunks == 3);
  node.ForgetStore(keys);
  node.Do(RemoteReachable{false});
  const Job& job = node.Move(Tier::kSsd, Tier::kRemote, keys);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 0);
  CHECK(job.left == 3);
  CHECK(node.rows.size() == 3);
  CHECK(node.Hits(keys) == 3);
}

TEST_CASE("What is cleared while it moves from disk to the store beyond the node comes to be in neither") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  REQUIRE(node.Move(Tier::kDram, Tier::kSsd, keys).chunks == 3);
  node.ForgetStore(keys);
  const bool while_written = GENERATE(false, true);
  node.hold_writes = while_written;
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kSsd, .to = Tier::kRemote});
  node.Rest();
  REQUIRE(!node.reads.empty());
  if (while_written) {
    while (!node.reads.empty()) node.EndReads();
    REQUIRE(!node.writes.empty());
  }
  const JobId clear{++node.jobs};
  node.Do(PromptClearAsked{.job = clear, .space = SpaceId{0}, .keys = keys});
  node.EndReads();
  while (!node.writes.empty()) node.EndWrites();
  node.Rest();
  CHECK(node.f.core->jobs().Find(clear)->state == JobState::kDone);
  CHECK(node.rows.empty());
  CHECK(node.store.empty());
  CHECK(node.Hits(keys) == 0);
}

TEST_CASE("What is cleared while it moves from slots to the store beyond the node comes to be there no more") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.ForgetStore(keys);
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kDram, .to = Tier::kRemote});
  node.Do(PromptClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys});
  node.Rest();
  CHECK(node.f.core->jobs().Find(JobId{node.jobs})->state == JobState::kDone);
  CHECK(node.store.empty());
  // Once it has ended the prompt goes there again.
  node.Keep(keys);
  CHECK(node.Move(Tier::kDram, Tier::kRemote, keys).chunks == 3);
  CHECK(node.store.size() == 3);
}

TEST_CASE("A move from a store beyond the node that doesn't answer says so, and one that is cancelled leaves nothing") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.store = {keys.begin(), keys.end()};
  node.store_answers = false;
  const Job& job = MoveFromStore(node, Tier::kDram, keys);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 0);
  CHECK(job.trouble == "the remote store didn't say what it has: it is away");
  CHECK(job.left == 3);
  CHECK(job.done == job.total);
  node.store_answers = true;
  node.Do(MoveAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}, .keys = keys, .from = Tier::kRemote, .to = Tier::kDram});
  node.Rest();
  node.Do(JobCancelAsked{JobId{node.jobs}});
  node.EndReads();
  CHECK(node.store.size() == 3);
  for (uint64_t n = 100; n < 116; ++n) node.Keep({KeyOf(n)});  // nothing is kept any more
  CHECK(node.Hits({KeyOf(115)}) == 1);
}

}  // namespace kvist::core
