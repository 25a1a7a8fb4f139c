// A store beyond the node: what lookups find there, how it is read and written, and that nobody waits for it, or is misled by it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <set>
#include <utility>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

CoreFixture::Options RemoteOptions(CoreOptions::Remote remote = {}, uint32_t slabs = 1) {
  CoreFixture::Options options;
  options.core.remote = remote;
  options.slabs = slabs;
  return options;
}

// A core with a remote store that is played by the test: what is asked of it is kept until the test has it answered.
class RemoteNode {
 public:
  explicit RemoteNode(const CoreFixture::Options& options = RemoteOptions(), std::vector<ReuseRule> more = {})
      : fixture(options), space(SpaceNamed("model", {KiB(4)})) {
    for (const ReuseRule& reuse : more) {
      space.groups.push_back(space.groups[0]);
      space.groups.back().reuse = reuse;
    }
    worker = fixture.Worker("engine", space);
    Hear(fixture.Do(RemoteReachable{true}));
  }

  // Notes what the core wants, and what it has answered.
  void Hear(Effects effects) {
    for (Effect& effect : effects) {
      if (auto* asked = std::get_if<RemoteAsked>(&effect)) asks.push_back(std::move(*asked));
      if (auto* write = std::get_if<WriteStarted>(&effect)) {
        REQUIRE(write->to == Tier::kRemote);
        writes.push_back(std::move(*write));
      }
      if (auto* read = std::get_if<ReadStarted>(&effect)) reads.push_back(std::move(*read));
      if (auto* answer = std::get_if<LookupAnswered>(&effect)) answers.push_back(*answer);
      if (auto* copy = std::get_if<CopyStarted>(&effect)) copies.push_back(std::move(*copy));
      if (auto* end = std::get_if<OpEnded>(&effect)) ended.push_back(std::move(*end));
      if (auto* found = std::get_if<CorruptionFound>(&effect)) corrupt.push_back(*found);
      if (auto* job = std::get_if<JobEnded>(&effect)) jobs.push_back(*job);
      if (auto* forgotten = std::get_if<RemoteForgotten>(&effect)) forgets.push_back(std::move(*forgotten));
    }
  }
  void Look(const std::vector<ChunkKey>& keys, absl::Duration lease = absl::Seconds(10), SessionId by = {}) {
    Hear(fixture.Do(LookupAsked{by.value == 0 ? worker : by, RequestTag{++tags}, keys, lease}));
  }
  // The store answers its oldest question.
  void AnswerAsk(absl::Status status = absl::OkStatus()) {
    REQUIRE(!asks.empty());
    const RemoteAsked ask = asks.front();
    asks.pop_front();
    RemoteFound found{ask.ask, std::move(status)};
    const auto groups = static_cast<uint16_t>(space.groups.size());
    for (uint16_t g = 0; g < groups && found.status.ok(); ++g) {
      for (const ChunkKey& key : ask.keys) found.there.push_back(store.contains({g, key}));
    }
    Hear(fixture.Do(found));
  }
  void EndReads(absl::Status status = absl::OkStatus()) {
    while (!reads.empty()) {
      const ReadStarted read = reads.front();
      reads.pop_front();
      REQUIRE(read.from == Tier::kRemote);
      REQUIRE(read.places.empty());
      Hear(fixture.Do(ReadFinished{read.chunk, status}));
    }
  }
  void EndWrite(absl::Status status = absl::OkStatus()) {
    const WriteStarted write = writes.front();
    writes.pop_front();
    if (status.ok()) store.insert({write.group.value, write.key});
    Hear(fixture.Do(WriteFinished{write.chunk, status, {}, Tier::kRemote}));
  }
  void EndWrites(absl::Status status = absl::OkStatus()) {
    while (!writes.empty()) EndWrite(status);
  }
  void EndForgets() {
    while (!forgets.empty()) {
      const RemoteForgotten forgotten = forgets.front();
      forgets.pop_front();
      const auto groups = static_cast<uint16_t>(space.groups.size());
      for (uint16_t g = 0; g < groups; ++g) {
        for (const ChunkKey& key : forgotten.keys) store.erase({g, key});
      }
      Hear(fixture.Do(RemoteForgot{forgotten.job, forgotten.space, forgotten.keys}));
    }
  }
  void ClearPrompt(const std::vector<ChunkKey>& keys) {
    Hear(fixture.Do(PromptClearAsked{JobId{++tags}, SpaceId{0}, keys}));
  }
  // Until the core has nothing left to do by itself.
  void Tick() {
    while (fixture.core->has_work()) Hear(fixture.PassTime(absl::ZeroDuration()));
  }
  // Stores and finishes; the store's part is noted.
  void Keep(const std::vector<ChunkKey>& keys, std::optional<ChunkKey> parent = {}, uint16_t group = 0) {
    Hear(fixture.Do(StoreAsked{worker, RequestTag{++tags}, GroupId{group}, parent, keys}));
    if (copies.empty()) return;
    REQUIRE(copies.size() == 1);
    const OpId op = copies.front().op;
    copies.clear();
    Hear(fixture.Finish(op));
  }
  void Have(const std::vector<ChunkKey>& keys, uint16_t group = 0) {
    for (const ChunkKey& key : keys) store.insert({group, key});
  }
  CoreStatus status() const { return fixture.core->status(); }

  CoreFixture fixture;
  SpaceSpec space;
  SessionId worker;
  std::set<std::pair<uint16_t, ChunkKey>> store;
  std::deque<RemoteAsked> asks;
  std::deque<WriteStarted> writes;
  std::deque<ReadStarted> reads;
  std::vector<LookupAnswered> answers;
  std::vector<CopyStarted> copies;
  std::vector<OpEnded> ended;
  std::vector<CorruptionFound> corrupt;
  std::vector<JobEnded> jobs;
  std::deque<RemoteForgotten> forgets;
  uint64_t tags = 0;
};

std::vector<ChunkKey> Following(uint64_t first, uint64_t count) {
  std::vector<ChunkKey> keys;
  for (uint64_t n = 0; n < count; ++n) keys.push_back(KeyOf(first + n));
  return keys;
}

}  // namespace

TEST_CASE("what is stored goes to the remote store once, prefixes first", "[remote]") {
  RemoteNode node;
  node.Keep(Following(1, 4));
  REQUIRE(node.writes.size() == 4);
  for (uint64_t n = 0; n < 4; ++n) {
    CHECK(node.writes[n].key == KeyOf(1 + n));
    CHECK(node.writes[n].position == n);
    CHECK(node.writes[n].parent.has_value() == (n > 0));
  }
  node.EndWrites();
  CHECK(node.status().remote_chunks_written == 4);
  node.Keep(Following(1, 4));  // there already
  CHECK(node.writes.empty());
  node.Look(Following(1, 4));  // all here: nobody is asked
  CHECK(node.asks.empty());
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 4);
}

TEST_CASE("what another node has stored is a hit, is read, and isn't written again", "[remote]") {
  RemoteNode node;
  const std::vector<ChunkKey> chain = Following(1, 6);
  node.Keep({chain[0], chain[1]});
  node.EndWrites();
  node.Have(chain);
  node.Look(chain);
  CHECK(node.answers.empty());
  REQUIRE(node.asks.size() == 1);
  CHECK(node.asks[0].keys == std::vector<ChunkKey>(chain.begin() + 2, chain.end()));
  node.AnswerAsk();
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 6);
  CHECK(node.answers[0].coming == 4);
  REQUIRE(node.answers[0].lease);
  REQUIRE(node.reads.size() == 4);
  CHECK(node.status().below == 0);
  // A load streams from them.
  node.Hear(node.fixture.Do(LoadAsked{node.worker, RequestTag{++node.tags}, node.answers[0].lease, {}, 0, 6}));
  REQUIRE(node.copies.size() == 1);
  CHECK(node.copies[0].slots.size() == 6);
  CHECK(std::count(node.copies[0].coming.begin(), node.copies[0].coming.end(), ChunkRef{}) == 2);
  node.EndReads();
  node.Hear(node.fixture.Finish(node.copies[0].op));
  CHECK(node.ended.back().status.ok());
  CHECK(node.ended.back().copied == 6);
  node.fixture.Do(ReleaseAsked{node.worker, node.answers[0].lease});
  CHECK(node.writes.empty());
  CHECK(node.status().sealed == 6);
  CHECK(node.status().remote_chunks_read == 4);
  node.Look(chain);
  CHECK(node.asks.empty());
}

TEST_CASE("what nobody keeps of the remote store's isn't remembered", "[remote]") {
  RemoteNode node;
  node.Have(Following(1, 6));
  SECTION("a lease that ends before its reads have begun") {
    // The pool is full of what others have leased: nothing can be read.
    for (const uint64_t first : {100, 200}) {
      node.Keep(Following(first, 8));
      node.EndWrites();
      node.Look(Following(first, 8), absl::Seconds(10), node.fixture.Worker("other" + std::to_string(first), node.space));
    }
    node.answers.clear();
    node.Look(Following(1, 6));
    node.AnswerAsk();
    REQUIRE(node.answers.size() == 1);
    CHECK(node.answers[0].chunks == 6);
    CHECK(node.reads.empty());
    CHECK(node.status().below == 6);
    node.Hear(node.fixture.Do(ReleaseAsked{node.worker, node.answers[0].lease}));
    CHECK(node.status().below == 0);
    CHECK(node.status().chunks == 16);
  }
  SECTION("a lookup that gets no lease, for the instance's is spent") {
    CoreFixture::Options options = RemoteOptions();
    options.core.lease_share = 0.25;  // of 16 slots
    RemoteNode small(options);
    small.Have(Following(1, 6));
    small.Look(Following(1, 6));
    small.AnswerAsk();
    REQUIRE(small.answers.size() == 1);
    CHECK(small.answers[0].chunks == 6);
    CHECK(!small.answers[0].lease);
    CHECK(small.reads.empty());
    CHECK(small.status().chunks == 0);
  }
  SECTION("evicted") {
    node.Look(Following(1, 6));
    node.AnswerAsk();
    node.EndReads();
    node.Hear(node.fixture.Do(ReleaseAsked{node.worker, node.answers[0].lease}));
    CHECK(node.status().chunks == 6);
    for (uint64_t n = 0; n < 4; ++n) node.Keep(Following(1000 + 100 * n, 8));
    CHECK(node.status().below == 0);
    CHECK(node.status().chunks == node.status().sealed);
  }
}

TEST_CASE("few are asked for at first, more when all were there, and no more than 1,024", "[remote]") {
  RemoteNode node(RemoteOptions({}, 128));  // 2,048 slots
  const std::vector<ChunkKey> chain = Following(1, 1500);
  node.Have(chain);
  SECTION("all there") {
    node.Look(chain);
    size_t asked = 0;
    std::vector<size_t> rounds;
    while (!node.asks.empty()) {
      CHECK(node.asks[0].keys.front() == chain[asked]);
      asked += node.asks[0].keys.size();
      rounds.push_back(node.asks[0].keys.size());
      node.AnswerAsk();
    }
    CHECK(rounds == std::vector<size_t>{16, 256, 752});
    REQUIRE(node.answers.size() == 1);
    CHECK(node.answers[0].chunks == 1024);
  }
  SECTION("a hole ends it") {
    node.store.erase({0, chain[40]});
    node.Look(chain);
    node.AnswerAsk();
    node.AnswerAsk();
    CHECK(node.asks.empty());
    REQUIRE(node.answers.size() == 1);
    CHECK(node.answers[0].chunks == 40);
    CHECK(node.status().remote_chunks_found == 40);
  }
  SECTION("nothing is there") {
    node.store.clear();
    node.Look(chain);
    node.AnswerAsk();
    CHECK(node.asks.empty());
    REQUIRE(node.answers.size() == 1);
    CHECK(node.answers[0].chunks == 0);
  }
}

TEST_CASE("what a lookup found and couldn't keep goes, however much it was", "[remote]") {
  CoreFixture::Options options = RemoteOptions({}, 128);  // 2,048 slots
  options.core.lease_share = 0.25;
  RemoteNode node(options);
  const std::vector<ChunkKey> chain = Following(1, 900);
  node.Have(chain);
  node.Look(chain);
  while (!node.asks.empty()) node.AnswerAsk();
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 900);
  CHECK_FALSE(node.answers[0].lease);
  for (int i = 0; i < 20; ++i) node.fixture.PassTime(absl::Milliseconds(1));
  CHECK(node.status().chunks == 0);
}

TEST_CASE("what was offered to the store before another node cleared it there isn't written", "[remote]") {
  RemoteNode node;
  node.fixture.Do(RemoteReachable{false});
  node.Keep(Following(1, 3));
  node.fixture.Do(RemoteCleared{node.space.digest});
  node.Keep(Following(10, 2));
  node.Hear(node.fixture.Do(RemoteReachable{true}));
  REQUIRE(node.writes.size() == 2);
  CHECK(node.writes[0].key == KeyOf(10));
}

TEST_CASE("a hybrid space resumes where all of its groups can, with the remote store's chunks", "[remote]") {
  RemoteNode node(RemoteOptions(), {{GroupKind::kWindow, 2}});
  const std::vector<ChunkKey> chain = Following(1, 8);
  node.Have(chain, 0);
  node.Have({chain[2], chain[3], chain[6]}, 1);
  node.Look(chain);
  node.AnswerAsk();
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 4);  // its window's last two are there
  CHECK(node.reads.size() == 4 + 2);
  CHECK(node.status().below == 0);  // what lies behind isn't kept
}

TEST_CASE("a lookup without a lease, and one while the store can't be reached, ask nobody", "[remote]") {
  RemoteNode node;
  node.Have(Following(1, 4));
  node.Look(Following(1, 4), absl::ZeroDuration());
  CHECK(node.asks.empty());
  node.fixture.Do(RemoteReachable{false});
  node.Look(Following(1, 4));
  CHECK(node.asks.empty());
  CHECK(node.answers.size() == 2);
  node.Keep(Following(10, 3));
  CHECK(node.writes.empty());
  CHECK(node.status().remote_waiting == 3);
  node.Hear(node.fixture.Do(RemoteReachable{true}));  // they waited
  CHECK(node.writes.size() == 3);
}

TEST_CASE("a store that doesn't answer in time is left alone for a while", "[remote]") {
  RemoteNode node;
  node.Have(Following(1, 4));
  node.fixture.PassTime(absl::Seconds(1));
  node.Look(Following(1, 4));
  node.AnswerAsk(absl::DeadlineExceededError("slow"));
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 0);
  CHECK(node.status().remote_unanswered == 1);
  node.Look(Following(1, 4));
  CHECK(node.asks.empty());
  node.fixture.PassTime(absl::Milliseconds(999));
  node.Look(Following(1, 4));
  CHECK(node.asks.empty());
  node.fixture.PassTime(absl::Milliseconds(2));
  node.Look(Following(1, 4));
  CHECK(node.asks.size() == 1);
}

TEST_CASE("what the store said it had and hasn't, or has otherwise, is a load that fails, and a miss", "[remote]") {
  RemoteNode node;
  const std::vector<ChunkKey> chain = Following(1, 4);
  node.Have(chain);
  const bool corrupt = GENERATE(false, true);
  node.Look(chain);
  node.AnswerAsk();
  node.Hear(node.fixture.Do(LoadAsked{node.worker, RequestTag{++node.tags}, node.answers[0].lease, {}, 0, 4}));
  REQUIRE(node.copies.size() == 1);
  node.EndReads(corrupt ? absl::DataLossError("other bytes") : absl::NotFoundError("gone"));
  node.Hear(node.fixture.Finish(node.copies[0].op, absl::DataLossError("a read failed")));
  REQUIRE(node.ended.size() == 1);
  CHECK(!node.ended[0].status.ok());
  CHECK(node.corrupt.size() == (corrupt ? 4 : 0));
  CHECK(node.status().remote_chunks_missing == (corrupt ? 0 : 4));
  CHECK(node.status().remote_chunks_corrupt == (corrupt ? 4 : 0));
  node.fixture.Do(ReleaseAsked{node.worker, node.answers[0].lease});
  CHECK(node.status().chunks == 0);
}

TEST_CASE("a session that ends while the store is asked for it leaves nothing", "[remote]") {
  RemoteNode node;
  node.Have(Following(1, 4));
  node.Look(Following(1, 4));
  node.fixture.Do(SessionClosed{node.worker});
  node.worker = SessionId{};
  node.AnswerAsk();
  CHECK(node.answers.empty());
  CHECK(node.status().chunks == 0);
}

TEST_CASE("a clear while the store is asked hides what it says it has", "[remote]") {
  RemoteNode node;
  node.Have(Following(1, 4));
  node.Look(Following(1, 4));
  Effects effects = node.fixture.Do(ClearAsked{JobId{1}});
  CHECK(
      std::any_of(effects.begin(), effects.end(), [](const Effect& e) { return std::holds_alternative<SpaceCleared>(e); }));
  node.AnswerAsk();
  REQUIRE(node.answers.size() == 1);
  CHECK(node.answers[0].chunks == 0);
  node.Hear(node.fixture.PassTime(absl::Milliseconds(1)));
  CHECK(node.jobs.empty());  // it isn't durable yet
  node.Hear(node.fixture.Do(ClearKept{JobId{1}, Tier::kSsd}));
  node.Hear(node.fixture.PassTime(absl::Milliseconds(1)));
  CHECK(node.jobs.empty());
  node.Hear(node.fixture.Do(ClearKept{JobId{1}, Tier::kRemote}));
  node.Hear(node.fixture.PassTime(absl::Milliseconds(1)));
  CHECK(node.jobs.size() == 1);
}

TEST_CASE("what two clears come upon while it is being written isn't in the store in the end", "[remote]") {
  RemoteNode node;
  const std::vector<ChunkKey> keys = KeysOf({1});
  for (int clears = 0; clears < 2; ++clears) {
    node.Keep(keys);
    node.ClearPrompt(keys);
    node.EndForgets();
  }
  node.Tick();
  CHECK(node.jobs.empty());  // what is being written may come there yet
  while (!node.writes.empty()) {
    node.EndWrite();
    node.EndForgets();
  }
  node.Tick();
  CHECK(node.jobs.size() == 2);
  CHECK(node.store.empty());
}

TEST_CASE("what was cleared while it was being written is no hit when the store has it before the write's end is heard",
          "[remote]") {
  RemoteNode node;
  const std::vector<ChunkKey> keys = KeysOf({1});
  node.Keep(keys);
  node.ClearPrompt(keys);
  node.EndForgets();
  node.Have(keys);
  node.Look(keys);
  node.AnswerAsk();
  CHECK(node.answers.back().chunks == 0);
}

TEST_CASE("what is written is held, within a budget, and what can't wait isn't written", "[remote]") {
  CoreOptions::Remote remote;
  remote.writing = KiB(8);  // two chunks: the second begins while the first is below it
  remote.queue = 6;
  RemoteNode node(RemoteOptions(remote));
  node.Keep(Following(1, 9));
  CHECK(node.writes.size() == 2);
  CHECK(node.status().remote_chunks_dropped == 3);  // six could wait
  CHECK(node.status().remote_waiting == 4);
  // What is being written can't be evicted; what waits can, and is dropped then.
  const std::vector<SlotRef> held = node.writes[0].slots;
  for (uint64_t n = 0; n < 6; ++n) node.Keep(Following(1000 + 100 * n, 4));
  CHECK(node.fixture.slots->IsLive(held[0]));
  node.fixture.Do(RemoteReachable{true});
  node.EndWrites();
  CHECK(node.status().remote_waiting == 0);
  CHECK(node.store.contains({0, KeyOf(1)}));
}

TEST_CASE("a write that fails leaves the chunk as it was", "[remote]") {
  RemoteNode node;
  node.Keep(Following(1, 2));
  node.EndWrites(absl::UnavailableError("gone"));
  CHECK(node.status().remote_writes_failed == 2);
  CHECK(node.status().sealed == 2);
  CHECK(node.store.empty());
  // Cleared while it was written: it goes when that has ended.
  node.Keep(Following(10, 2));
  node.fixture.Do(ClearAsked{JobId{1}});
  node.fixture.PassTime(absl::Milliseconds(1));
  CHECK(node.status().chunks == 2);
  node.EndWrites();
  CHECK(node.status().chunks == 0);
}

TEST_CASE("a flush without a disk is refused, though a store beyond the node has it all", "[remote]") {
  RemoteNode node;
  node.Keep(Following(1, 2));
  node.EndWrites();
  const Effects effects = node.fixture.Do(FlushAsked{node.worker, RequestTag{1}});
  REQUIRE(effects.size() == 1);
  CHECK(absl::IsFailedPrecondition(std::get<Flushed>(effects[0]).status));
}

}  // namespace kvist::core
