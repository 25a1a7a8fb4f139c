// Load or recompute: what is on disk is a hit where reading it takes less than computing it.
#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr uint32_t kChain = 8;  // chunks on disk
constexpr uint32_t kInDram = 2;

// A chain of kInDram chunks in DRAM and kChain - kInDram behind them on disk alone.
class HalfOnDisk {
 public:
  explicit HalfOnDisk(bool gate = true, bool window = false)
      : fixture_(OptionsOf(gate)), space_(SpaceNamed("model", {KiB(4)})) {
    if (window) {
      space_.groups.push_back(space_.groups[0]);
      space_.groups[1].reuse = {GroupKind::kWindow, 1};
    }
    worker_ = fixture_.Worker("engine", space_);
    fixture_.Do(DiskWritable{true});
    for (uint64_t n = 0; n < kChain; ++n) chain_.push_back(KeyOf(n + 1));
    for (uint16_t group = 0; group < space_.groups.size(); ++group)
      REQUIRE(fixture_.Keep(worker_, chain_, {}, GroupId{group}) == kChain);
    WriteAll();
    // Others take the place of all but the first, which were used last.
    for (uint64_t n = 0; OnDisk() < space_.groups.size() * (kChain - kInDram); ++n) {
      REQUIRE(n < 64);
      fixture_.Lookup(worker_, {chain_.begin(), chain_.begin() + kInDram});
      fixture_.Keep(worker_, {KeyOf(1000 + n)});
    }
    WriteAll();  // so that reads may take their place
  }

  uint64_t OnDisk() { return fixture_.core->status().below; }
  uint64_t recomputed() { return fixture_.core->status().chunks_recomputed; }

  // What the engine takes for a chunk, and for one at position p more: as it says.
  void Compute(double seconds, double more = 0) {
    for (uint32_t p = 0; p < 200; ++p) {
      const double first = p % 20, chunks = 1 + p % 3;
      const double took = chunks * seconds + chunks * (first + chunks / 2) * more;
      fixture_.Do(PrefillReported{worker_, first, chunks, absl::Seconds(took)});
    }
  }
  // What the disk takes for a chunk, and to begin.
  void Disk(double seconds, double begin) {
    for (uint32_t i = 1; i < 200; ++i) {
      const uint32_t chunks = 1 + i % 9;
      fixture_.Do(TierRead{KiB(4) * chunks, true, absl::Seconds(begin + chunks * seconds)});
    }
  }
  struct Said {
    LookupAnswered answer;
    std::vector<ReadStarted> reads;
  };
  Said Ask(absl::Duration lease = absl::Seconds(10), uint32_t have = 0) {
    Said said;
    for (const Effect& effect : fixture_.Do(LookupAsked{worker_, RequestTag{++tags_}, chain_, lease, have})) {
      if (const auto* answer = std::get_if<LookupAnswered>(&effect)) said.answer = *answer;
      if (const auto* read = std::get_if<ReadStarted>(&effect)) said.reads.push_back(*read);
    }
    if (said.answer.lease) fixture_.Do(ReleaseAsked{worker_, said.answer.lease});
    return said;
  }
  void FillUnwritten() {
    for (uint64_t n = 0; n < 40; ++n) fixture_.Keep(worker_, {KeyOf(2000 + n)});
  }
  CoreFixture& fixture() { return fixture_; }

 private:
  void WriteAll() {
    fixture_.Do(FlushAsked{worker_, RequestTag{1}});
    for (const Effect& effect : fixture_.PassTime(absl::Milliseconds(1))) {
      const auto* write = std::get_if<WriteStarted>(&effect);
      if (write != nullptr) fixture_.Do(WriteFinished{write->chunk, absl::OkStatus(), {{1, ++written_}}});
    }
  }
  static CoreFixture::Options OptionsOf(bool gate) {
    CoreFixture::Options options;
    options.slabs = 2;  // of 16 slots
    options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
    options.core.eviction = Eviction::kLru;
    options.core.lease_share = 1;
    options.core.gate = gate;
    return options;
  }

  CoreFixture fixture_;
  SpaceSpec space_;
  SessionId worker_;
  std::vector<ChunkKey> chain_;
  uint64_t tags_ = 1;
  uint32_t written_ = 0;
};

TEST_CASE("A lookup finds all that is on disk until it is known that computing it takes less") {
  const bool reports = GENERATE(true, false);
  HalfOnDisk gate;
  if (reports) gate.Compute(1e-6);
  if (!reports) gate.Disk(1, 0);
  const HalfOnDisk::Said said = gate.Ask();
  CHECK(said.answer.chunks == kChain);
  CHECK(said.answer.coming == kChain - kInDram);
  CHECK(said.reads.size() == kChain - kInDram);
}

TEST_CASE("A lookup leaves what is on disk to an engine that computes it sooner, and reads some of it for the next one") {
  HalfOnDisk gate;
  gate.Compute(1e-3);
  gate.Disk(5e-3, 0);
  const HalfOnDisk::Said said = gate.Ask();
  CHECK(said.answer.chunks == kInDram);
  CHECK(said.answer.coming == 0);
  CHECK(gate.recomputed() == kChain - kInDram);
  // Who only asks is told all.
  CHECK(gate.Ask(absl::ZeroDuration()).answer.chunks == kChain);
  // Nothing more while that is under way, and none when it brings what stores are to have; and then it is a hit.
  CHECK(gate.Ask().reads.empty());
  std::vector<ReadStarted> reads = said.reads;
  uint32_t there = kInDram;
  for (int round = 0; there < kChain; ++round) {
    REQUIRE(round < 8);
    REQUIRE(!reads.empty());
    for (const ReadStarted& read : reads) {
      CHECK(read.key == KeyOf(++there));
      gate.fixture().Do(ReadFinished{read.chunk, absl::OkStatus()});
    }
    const HalfOnDisk::Said again = gate.Ask();
    CHECK(again.answer.chunks == there);
    reads = again.reads;
  }
  CHECK(reads.empty());
}

TEST_CASE("A lookup weighs where in the prompt the chunks are, what the engine has, and what waits for the disk") {
  HalfOnDisk gate;
  SECTION("deeper chunks cost more to compute") {
    gate.Compute(1e-4, 1e-3);  // 6 chunks from 2 on: 0.6 ms and 30 ms
    gate.Disk(4e-3, 0);
    CHECK(gate.Ask().answer.chunks == kChain);
  }
  SECTION("the engine has most of them itself: beginning isn't worth it") {
    gate.Compute(2e-3);
    gate.Disk(1e-3, 3e-3);
    CHECK(gate.Ask(absl::Seconds(10), kChain - 1).answer.chunks == kChain - 1);
    CHECK(gate.Ask().answer.chunks == kChain);
  }
  SECTION("others wait for the disk already") {
    gate.Compute(2e-3);
    gate.Disk(1e-3, 0);
    REQUIRE(gate.Ask().reads.size() == kChain - kInDram);  // none of which has come
    // They are on their way, and the engine's own chunks would have come sooner than all of those and more.
    CHECK(gate.Ask().answer.chunks == kChain);
    gate.Compute(0.5e-3);
    CHECK(gate.Ask().answer.chunks == kInDram);
  }
}

TEST_CASE("A lookup goes over what is still being read to what is in DRAM behind it") {
  HalfOnDisk gate;
  const HalfOnDisk::Said first = gate.Ask();
  REQUIRE(first.reads.size() == kChain - kInDram);
  constexpr size_t kStillRead = 3;
  uint32_t there = 0;
  for (const ReadStarted& read : first.reads) {
    if (read.position < kInDram + kStillRead) continue;
    gate.fixture().Do(ReadFinished{read.chunk, absl::OkStatus()});
    ++there;
  }
  REQUIRE(there == kChain - kInDram - kStillRead);
  gate.Disk(3e-3, 0);  // 9 ms for those three
  SECTION("what lies behind makes it worth it") {
    gate.Compute(2e-3);
    CHECK(gate.Ask().answer.chunks == kChain);
  }
  SECTION("all of it is computed sooner") {
    gate.Compute(1e-3);
    CHECK(gate.Ask().answer.chunks == kInDram);
    CHECK(gate.recomputed() == 0);  // nothing that lies on disk alone
  }
}

TEST_CASE("Reads for nobody drop nothing that isn't written") {
  HalfOnDisk gate;
  gate.Compute(1e-3);
  gate.Disk(5e-3, 0);
  gate.FillUnwritten();
  const uint64_t evictions = gate.fixture().core->status().evictions;
  gate.fixture().Do(DiskWritable{false});
  CHECK(gate.Ask().reads.empty());
  CHECK(gate.fixture().core->status().evictions == evictions);
}

TEST_CASE("A lookup without the gate finds all") {
  HalfOnDisk gate(/*gate=*/false);
  gate.Compute(1e-6);
  gate.Disk(1, 1);
  CHECK(gate.Ask().answer.chunks == kChain);
  CHECK(gate.recomputed() == 0);
}

TEST_CASE("In a hybrid space what is left can be resumed in all groups") {
  HalfOnDisk gate(/*gate=*/true, /*window=*/true);
  gate.Compute(1e-3);
  gate.Disk(5e-3, 0);
  const HalfOnDisk::Said said = gate.Ask();
  CHECK(said.answer.chunks == kInDram);
  CHECK(said.answer.coming == 0);
}

}  // namespace
}  // namespace kvist::core
