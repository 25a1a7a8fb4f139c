// What a core with a disk below its slots asks of it and says of it, case by case; disk_test.cc tries all of it at random.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/core/disk_ages.h"
#include "tests/unit/core/core_fixture.h"

using namespace kvist;
using namespace kvist::core;

namespace {

// A disk to which nothing is written before a flush asks for it.
CoreFixture::Options WritesWhenAsked() {
  CoreFixture::Options options;
  options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
  return options;
}

}  // namespace

TEST_CASE("Nothing is read for a lease that would take its instance past its budget") {
  CoreFixture::Options options;
  options.core.disk = CoreOptions::Disk{};
  options.core.lease_share = 0.25;  // 4 chunks
  CoreFixture fixture(options);
  const SpaceSpec space = SpaceNamed("model", {KiB(4)});
  const SessionId worker = fixture.Worker("engine", space);
  ChunksFound found{SpaceId{0}, {}};
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < 8; ++k) {
    keys.push_back(KeyOf(k));
    found.chunks.push_back({GroupId{}, KeyOf(k), std::nullopt, k, {{1, k + 1}}});
    if (k > 0) found.chunks.back().parent = KeyOf(k - 1);
  }
  REQUIRE(fixture.Do(found).empty());
  const auto reads = [](const Effects& effects) {
    return std::count_if(effects.begin(), effects.end(),
                         [](const Effect& e) { return std::holds_alternative<ReadStarted>(e); });
  };
  const Effects all = fixture.Do(LookupAsked{worker, RequestTag{1}, keys, absl::Seconds(1)});
  CHECK(reads(all) == 0);
  const auto& answer = std::get<LookupAnswered>(all.front());
  CHECK(answer.chunks == 8);
  CHECK(answer.coming == 0);
  CHECK_FALSE(answer.lease);
  keys.resize(4);
  CHECK(reads(fixture.Do(LookupAsked{worker, RequestTag{2}, keys, absl::Seconds(1)})) == 4);
}

TEST_CASE("What was cleared is no hit because the disk tells of it late") {
  CoreFixture::Options options;
  options.core.disk = CoreOptions::Disk{};
  CoreFixture fixture(options);
  const SpaceSpec space = SpaceNamed("model", {KiB(4)});
  const bool all = GENERATE(false, true);
  if (all) fixture.Do(ClearAsked{JobId{1}});  // before the space is known
  const SessionId worker = fixture.Worker("engine", space);
  if (!all) fixture.Do(ClearAsked{JobId{1}, SpaceId{0}});
  size_t freed = 0;
  const auto count = [&freed](const Effects& effects) {
    for (const Effect& effect : effects) freed += std::holds_alternative<PlacesFreed>(effect);
  };
  // They had left the disk's hands when it heard of the clear.
  count(fixture.Do(ChunksFound{SpaceId{0}, {{GroupId{}, KeyOf(1), std::nullopt, 0, {{1, 1}}}}}));
  for (int i = 0; i < 3; ++i) count(fixture.Do(Tick{}));
  CHECK(freed == 1);
  const std::vector<ChunkKey> keys = {KeyOf(1)};
  const Effects asked = fixture.Do(LookupAsked{worker, RequestTag{1}, keys, absl::Seconds(1)});
  CHECK(std::get<LookupAnswered>(asked.front()).chunks == 0);
}

TEST_CASE("What hangs on slots that the engine needs no more must fit beside them, or nothing is leased") {
  CoreFixture::Options options;  // 16 slots
  options.core.disk = CoreOptions::Disk{};
  options.core.lease_share = 1.0;
  CoreFixture fixture(options);
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  ChunksFound found{SpaceId{0}, {}};
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < 20; ++k) {
    keys.push_back(KeyOf(k));
    found.chunks.push_back({GroupId{}, KeyOf(k), std::nullopt, k, {{1, k + 1}}});
    if (k > 0) found.chunks.back().parent = KeyOf(k - 1);
  }
  REQUIRE(fixture.Do(found).empty());
  struct Asked {
    LookupAnswered answer;
    std::vector<ChunkRef> reads;
  };
  const auto ask = [&](size_t count, uint32_t have) {
    Asked asked;
    const std::span<const ChunkKey> some(keys.data(), count);
    for (const Effect& effect : fixture.Do(LookupAsked{worker, RequestTag{1}, some, absl::Seconds(1), have})) {
      if (const auto* answer = std::get_if<LookupAnswered>(&effect)) asked.answer = *answer;
      if (const auto* read = std::get_if<ReadStarted>(&effect)) asked.reads.push_back(read->chunk);
    }
    return asked;
  };
  const Asked first = ask(10, 0);
  REQUIRE(first.reads.size() == 10);
  for (const ChunkRef chunk : first.reads) fixture.Do(ReadFinished{chunk, absl::OkStatus()});
  fixture.Do(ReleaseAsked{worker, first.answer.lease});

  const Asked all = ask(20, 10);
  CHECK(all.answer.chunks == 20);
  CHECK_FALSE(all.answer.lease);
  CHECK(all.reads.empty());
  const Asked some = ask(16, 10);
  CHECK(some.answer.lease);
  CHECK(some.answer.coming == 6);
  CHECK(some.reads.size() == 6);
}

TEST_CASE("A flush waits for the writes that it needs, also when the disk takes no more meanwhile") {
  CoreFixture fixture(WritesWhenAsked());
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  fixture.Do(DiskWritable{true});
  REQUIRE(fixture.Keep(worker, KeysOf({1})) == 1);
  const auto flushed = [](const Effects& effects) -> const Flushed* {
    for (const Effect& effect : effects) {
      if (const auto* said = std::get_if<Flushed>(&effect)) return said;
    }
    return nullptr;
  };
  REQUIRE(flushed(fixture.Do(FlushAsked{worker, RequestTag{1}})) == nullptr);
  const Effects begun = fixture.PassTime(absl::Milliseconds(1));
  REQUIRE(begun.size() == 1);
  const ChunkRef chunk = std::get<WriteStarted>(begun[0]).chunk;
  CHECK(flushed(fixture.Do(DiskWritable{false})) == nullptr);
  SECTION("it becomes durable") {
    const Effects ended = fixture.Do(WriteFinished{chunk, absl::OkStatus(), {{1, 1}}});
    REQUIRE(flushed(ended) != nullptr);
    CHECK(flushed(ended)->status.ok());
    CHECK(flushed(ended)->chunks == 1);
  }
  SECTION("it doesn't") {
    const Effects ended = fixture.Do(WriteFinished{chunk, absl::UnavailableError("EIO")});
    REQUIRE(flushed(ended) != nullptr);
    CHECK(absl::IsUnavailable(flushed(ended)->status));
  }
}

TEST_CASE("What lay in a segment that was given up is written again by a flush, or it says that it isn't durable") {
  CoreFixture fixture(WritesWhenAsked());
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  fixture.Do(DiskWritable{true});
  REQUIRE(fixture.Keep(worker, KeysOf({1})) == 1);
  std::optional<Flushed> flushed;
  std::vector<WriteStarted> writes;
  std::vector<ReadStarted> reads;
  const auto hear = [&](const Effects& effects) {
    for (const Effect& effect : effects) {
      if (const auto* said = std::get_if<Flushed>(&effect)) flushed = *said;
      if (const auto* write = std::get_if<WriteStarted>(&effect)) writes.push_back(*write);
      if (const auto* read = std::get_if<ReadStarted>(&effect)) reads.push_back(*read);
    }
  };
  const auto flush = [&] {
    flushed.reset();
    hear(fixture.Do(FlushAsked{worker, RequestTag{1}}));
    hear(fixture.PassTime(absl::Milliseconds(1)));
  };
  const auto written = [&](uint32_t unit) {
    hear(fixture.Do(WriteFinished{writes.back().chunk, absl::OkStatus(), {{1, unit}}}));
  };
  const auto lose = [&](uint32_t unit) {
    hear(fixture.Do(PlacesLost{{{SpaceId{0}, GroupId{0}, KeyOf(1), {1, unit}}}, /*damaged=*/false}));
  };
  flush();
  REQUIRE(writes.size() == 1);
  written(1);
  REQUIRE(flushed.has_value());
  SECTION("while it lies in a slot, too") {
    lose(1);
    flush();
    CHECK_FALSE(flushed.has_value());
    REQUIRE(writes.size() == 2);
    written(2);
    REQUIRE(flushed.has_value());
    CHECK(flushed->status.ok());
    CHECK(flushed->chunks == 1);
  }
  SECTION("while a flush that has counted it waits for another") {
    REQUIRE(fixture.Keep(worker, KeysOf({2})) == 1);
    flush();
    REQUIRE(writes.size() == 2);  // of the other one
    CHECK_FALSE(flushed.has_value());
    lose(1);
    written(2);
    REQUIRE(flushed.has_value());
    CHECK(absl::IsUnavailable(flushed->status));
    CHECK(flushed->chunks == 1);
  }
  SECTION("while it is being read") {
    hear(fixture.Do(TierClearAsked{.job = JobId{1}, .tier = Tier::kDram, .space = SpaceId{0}, .keys = KeysOf({1})}));
    hear(fixture.PassTime(absl::Milliseconds(1)));
    hear(fixture.Do(LookupAsked{worker, RequestTag{2}, KeysOf({1}), absl::Seconds(5)}));
    REQUIRE(reads.size() == 1);
    lose(1);
    flush();
    REQUIRE(flushed.has_value());
    CHECK(absl::IsUnavailable(flushed->status));
    CHECK(flushed->chunks == 0);
    hear(fixture.Do(ReadFinished{reads[0].chunk, absl::OkStatus()}));
    flush();
    REQUIRE(writes.size() == 2);
    written(2);
    REQUIRE(flushed.has_value());
    CHECK(flushed->status.ok());
    CHECK(flushed->chunks == 1);
  }
  SECTION("while it is written elsewhere, which fails") {
    REQUIRE(fixture.Lookup(worker, KeysOf({1}), absl::ZeroDuration()).chunks == 1);
    hear(fixture.Do(PlacesWanted{{{SpaceId{0}, GroupId{0}, KeyOf(1), {1, 1}}}}));
    REQUIRE(writes.size() == 2);
    lose(1);
    hear(fixture.Do(WriteFinished{writes.back().chunk, absl::UnavailableError("EIO")}));
    flush();
    CHECK_FALSE(flushed.has_value());
    REQUIRE(writes.size() == 3);
    written(2);
    REQUIRE(flushed.has_value());
    CHECK(flushed->chunks == 1);
  }
  SECTION("while a load waits for it, and gives up") {
    hear(fixture.Do(TierClearAsked{.job = JobId{1}, .tier = Tier::kDram, .space = SpaceId{0}, .keys = KeysOf({1})}));
    hear(fixture.PassTime(absl::Milliseconds(1)));
    for (uint64_t n = 0; n < 16; ++n) REQUIRE(fixture.Store(worker, KeysOf({100 + n})).has_value());  // no slot is left
    const LeaseId lease = fixture.Lookup(worker, KeysOf({1}), absl::Seconds(60)).lease;
    REQUIRE(lease);
    std::optional<OpId> waits;
    for (const Effect& effect : fixture.Do(LoadAsked{worker, RequestTag{3}, lease, GroupId{}, 0, 1})) {
      if (const auto* said = std::get_if<CopyWaits>(&effect)) waits = said->op;
    }
    REQUIRE(waits.has_value());
    lose(1);
    CHECK(fixture.core->status().below == 1);  // until the load has ended
    flush();
    REQUIRE(flushed.has_value());
    CHECK(absl::IsUnavailable(flushed->status));
    CHECK(flushed->chunks == 0);
    hear(fixture.Do(CancelAsked{*waits}));
    CHECK(fixture.core->status().below == 0);
  }
  CHECK(fixture.core->status().chunks_corrupt_on_disk == 0);
}

TEST_CASE("A clear of a prompt hides what the disk keeps of its space and didn't name") {
  const bool left = GENERATE(true, false);
  CoreFixture::Options options;
  options.core.disk = CoreOptions::Disk{};
  CoreFixture fixture(options);
  fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  fixture.Do(DiskWritable{true});
  fixture.Do(DiskTold{.rows_left = left});
  const auto hidden_by = [&](JobId job) {
    size_t hidden = 0;
    Effects effects = fixture.Do(PromptClearAsked{job, SpaceId{0}, KeysOf({1})});
    for (int i = 0; i < 3; ++i) {
      for (const Effect& effect : effects) hidden += std::holds_alternative<ChunksHidden>(effect);
      effects = fixture.PassTime(absl::Milliseconds(1));
    }
    fixture.Do(ClearKept{job});
    return hidden;
  };
  CHECK(hidden_by(JobId{1}) == (left ? 1 : 0));
  CHECK(hidden_by(JobId{2}) == 0);
}

TEST_CASE("What nears eviction is written, also where the pool is full because no slot fits into the ends of its slabs") {
  CoreFixture::Options options;
  options.slabs = 4;  // of 64 KiB: a slot in each
  options.core.disk = CoreOptions::Disk{.reserve = KiB(36)};
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("model", {KiB(36)}));
  f.Do(DiskWritable{true});
  uint32_t writes = 0;
  std::vector<OpId> copies;
  const auto carry = [&](const Effects& effects) {
    for (const Effect& effect : effects) {
      writes += std::holds_alternative<WriteStarted>(effect) ? 1 : 0;
      if (const auto* copy = std::get_if<CopyStarted>(&effect)) copies.push_back(copy->op);
    }
  };
  for (uint64_t n = 0; n < 4; ++n) {
    carry(f.Do(StoreAsked{worker, RequestTag{n}, GroupId{}, std::nullopt, KeysOf({n})}));
    REQUIRE(copies.size() == n + 1);
    carry(f.Finish(copies.back()));
  }
  CHECK(f.slots->free_bytes() == Bytes{});
  CHECK(writes == 2);  // the reserve, and ahead of it
}

TEST_CASE("The reserve is refilled in bursts: a bit more than is missing, then nothing until some of it is missing again") {
  CoreFixture::Options options;  // 16 slots of 4 KiB
  options.core.disk = CoreOptions::Disk{.reserve = KiB(16), .writing = KiB(64)};
  CoreFixture fixture(options);
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  fixture.Do(DiskWritable{true});
  std::vector<int> writes;  // that each store began
  for (uint64_t n = 0; n < 24; ++n) {
    writes.push_back(0);
    Effects effects = fixture.Do(StoreAsked{worker, RequestTag{n}, GroupId{}, std::nullopt, KeysOf({n})});
    while (!effects.empty()) {
      Effects next;
      for (const Effect& effect : effects) {
        const Effects more = [&]() -> Effects {
          if (const auto* copy = std::get_if<CopyStarted>(&effect)) return fixture.Finish(copy->op);
          const auto* write = std::get_if<WriteStarted>(&effect);
          if (write == nullptr) return {};
          ++writes.back();
          return fixture.Do(WriteFinished{write->chunk, absl::OkStatus(), {{1, 1 + write->chunk.index}}});
        }();
        next.insert(next.end(), more.begin(), more.end());
      }
      effects = std::move(next);
    }
  }
  // 12 of 16 slots fill without a write. Each store from then on takes one of the reserve; a burst makes it 2 more than it has to be.
  CHECK(std::accumulate(writes.begin(), writes.begin() + 12, 0) == 0);
  const auto bursts = std::count_if(writes.begin(), writes.end(), [](int n) { return n > 0; });
  CHECK(std::accumulate(writes.begin(), writes.end(), 0) >= 12);
  CHECK(bursts <= 5);
  CHECK(std::ranges::max(writes) == 3);
}

TEST_CASE("The end of a long chain is written as far up as the reserve wants, so a store drops nothing of it") {
  CoreFixture::Options options;  // 16 slots of 4 KiB
  options.core.disk = CoreOptions::Disk{.reserve = KiB(16), .writing = KiB(64)};
  CoreFixture fixture(options);
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  std::vector<ChunkRef> writes;
  std::optional<CopyStarted> copy;
  const auto hear = [&](const Effects& effects) {
    for (const Effect& effect : effects) {
      if (const auto* write = std::get_if<WriteStarted>(&effect)) writes.push_back(write->chunk);
      if (const auto* started = std::get_if<CopyStarted>(&effect)) copy = *started;
    }
  };
  const auto write = [&](size_t at) {
    const ChunkRef chunk = writes[at];
    writes.erase(writes.begin() + static_cast<ptrdiff_t>(at));
    hear(fixture.Do(WriteFinished{chunk, absl::OkStatus(), {{1, 1 + chunk.index}}}));
  };
  const auto count = [&](uint64_t first, uint64_t chunks) {
    std::vector<ChunkKey> keys;
    for (uint64_t n = 0; n < chunks; ++n) keys.push_back(KeyOf(first + n));
    return keys;
  };
  const auto store = [&](uint64_t first, uint64_t chunks) {
    copy.reset();
    hear(fixture.Do(StoreAsked{worker, RequestTag{first}, GroupId{}, std::nullopt, count(first, chunks)}));
    if (copy.has_value()) hear(fixture.Finish(copy->op));
    return copy.has_value() ? copy->slots.size() : 0;
  };
  const auto hits = [&] {
    const Effects effects = fixture.Do(LookupAsked{worker, RequestTag{1}, count(0, 16), absl::ZeroDuration()});
    hear(effects);
    return std::get<LookupAnswered>(effects.front()).chunks;
  };
  REQUIRE(store(0, 16) == 16);
  hear(fixture.Do(DiskWritable{true}));
  REQUIRE(writes.size() >= 4);
  const size_t at_first = writes.size();

  SECTION("it is evicted from its end, whatever the order in which it was written") {
    const bool backwards = GENERATE(false, true);
    while (!writes.empty()) write(backwards ? writes.size() - 1 : 0);
    REQUIRE(store(100, 4) == 4);
    CHECK(fixture.core->status().evictions == 4);
    CHECK(fixture.core->status().demotions == 4);
    CHECK(hits() == 16);
  }
  SECTION("while it is being written a store takes none of it, and finds what else there is") {
    for (uint64_t n = 0; n < 4; ++n) REQUIRE(store(100, 1) == 0);
    CHECK(fixture.core->status().evictions == 0);
    write(0);
    CHECK(store(100, 1) == 1);
    CHECK(fixture.core->status().demotions == 1);
  }
  SECTION("what is used again goes after what isn't, with all above it") {
    while (!writes.empty()) write(0);
    CHECK(hits() == 16);
    CHECK(writes.empty());  // they are on disk
    CHECK(store(100, 4) == 4);
    CHECK(fixture.core->status().demotions == 4);
  }
  SECTION("while the write of the last one lasts no more is written than the reserve wants") {
    for (int n = 0; n < 16; ++n) {
      if (writes.size() > 1) write(1);
      hear(fixture.PassTime(absl::Milliseconds(1)));
    }
    CHECK(writes.size() == 1);
    CHECK(fixture.core->status().chunks_written == at_first - 1);
    CHECK(store(100, 1) == 0);
    write(0);
    CHECK(store(100, 4) == 4);
    CHECK(fixture.core->status().demotions == 4);
  }
  SECTION("a hint changes nothing of what is in the reserve") {
    while (!writes.empty()) write(0);
    hear(fixture.Do(HintAsked{worker, count(0, 16), {.stop_reason = StopReason::kStop}}));
    CHECK(writes.empty());
    CHECK(store(100, 4) == 4);
    CHECK(fixture.core->status().demotions == 4);
  }
  SECTION("one that couldn't be written keeps those above it, and is tried again") {
    hear(fixture.Do(WriteFinished{writes.front(), absl::UnavailableError("EIO")}));
    writes.erase(writes.begin());
    while (writes.size() > 1) write(1);
    write(0);
    CHECK(at_first <= 6);
    CHECK(store(100, 4) == 4);
    CHECK(hits() == 16);
  }
}

TEST_CASE("What was used lately is told from what is only known to have been used before, for a turnover and more") {
  constexpr Bytes kPeriod = KiB(1);
  DiskAges ages(kPeriod * 12);
  for (int period = 0; period < 40; ++period) {
    CHECK(ages.Lately(ages.now(), StopReason::kUnknown));
    const uint8_t used = ages.now(), before = ages.before();
    CHECK_FALSE(ages.Lately(before, StopReason::kUnknown));
    DiskAges later = ages;
    for (int ago = 0; ago <= 12; ++ago) {
      CAPTURE(period, ago);
      CHECK(later.Lately(used, StopReason::kToolCall) == (ago <= 2));
      CHECK(later.Lately(used, StopReason::kStop) == (ago <= 1));
      CHECK_FALSE(later.Lately(before, StopReason::kUnknown));
      later.Wrote(kPeriod);
    }
    ages.Wrote(kPeriod);
  }
}

TEST_CASE("Tenants whose reserves are used up are written for in turns") {
  CoreFixture::Options options;  // 16 slots of 4 KiB
  options.core.disk = CoreOptions::Disk{.reserve = KiB(16), .writing = KiB(4)};
  CoreFixture fixture(options);
  for (const uint64_t t : {0, 1}) {
    const std::string tenant = "tenant" + std::to_string(t);
    const SessionId worker = fixture.Worker("engine" + std::to_string(t), SpaceNamed("model", {KiB(4)}, tenant));
    for (uint64_t n = 0; n < 8; ++n) REQUIRE(fixture.Keep(worker, KeysOf({t * 100 + n})) == 1);
  }
  std::vector<uint32_t> spaces;
  Effects effects = fixture.Do(DiskWritable{true});
  while (spaces.size() < 6) {
    const auto write =
        std::ranges::find_if(effects, [](const Effect& e) { return std::holds_alternative<WriteStarted>(e); });
    REQUIRE(write != effects.end());
    const auto& started = std::get<WriteStarted>(*write);
    spaces.push_back(started.space.value);
    effects = fixture.Do(WriteFinished{started.chunk, absl::OkStatus(), {{1, 1 + started.chunk.index}}});
  }
  for (size_t n = 1; n < spaces.size(); ++n) CHECK(spaces[n] != spaces[n - 1]);
}

TEST_CASE("A load of what went back to its disk waits for its next read, whatever an earlier one had begun") {
  CoreFixture::Options options;  // 16 slots
  options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
  options.core.event_work = 64;
  options.core.lease_share = 0.9;
  CoreFixture fixture(options);
  const SessionId worker = fixture.Worker("engine", SpaceNamed("model", {KiB(4)}));
  const std::vector<ChunkKey> crowded = KeysOf({1}), cancelled = KeysOf({2});
  fixture.Do(DiskWritable{true});
  REQUIRE(fixture.Keep(worker, crowded) == 1);
  REQUIRE(fixture.Keep(worker, cancelled) == 1);
  fixture.Do(FlushAsked{worker, RequestTag{1}});
  for (const Effect& effect : fixture.PassTime(absl::Milliseconds(1))) {
    const auto& write = std::get<WriteStarted>(effect);
    fixture.Do(WriteFinished{write.chunk, absl::OkStatus(), {{1, 1 + write.chunk.index}}});
  }
  fixture.Do(DiskWritable{false});
  // The pool is full of others that are being stored or leased; the two are only on disk.
  std::vector<LeaseId> others;
  for (uint64_t n = 0; n < 16; ++n) {
    if (n < 10) REQUIRE(fixture.Store(worker, KeysOf({100 + n})).has_value());
    if (n < 10) continue;
    REQUIRE(fixture.Keep(worker, KeysOf({100 + n})) == 1);
    others.push_back(fixture.Lookup(worker, KeysOf({100 + n}), absl::Seconds(60)).lease);
    REQUIRE(others.back());
  }
  REQUIRE(fixture.core->status().below == 2);
  struct Said {
    std::vector<OpId> waits, copies;
    std::vector<ChunkRef> reads;
  };
  const auto said = [](const Effects& effects) {
    Said all;
    for (const Effect& effect : effects) {
      if (const auto* waits = std::get_if<CopyWaits>(&effect)) all.waits.push_back(waits->op);
      if (const auto* copy = std::get_if<CopyStarted>(&effect)) all.copies.push_back(copy->op);
      if (const auto* read = std::get_if<ReadStarted>(&effect)) all.reads.push_back(read->chunk);
    }
    return all;
  };
  uint64_t tag = 1000;
  const auto load = [&](LeaseId lease) {
    const Said all = said(fixture.Do(LoadAsked{worker, RequestTag{++tag}, lease, GroupId{}, 0, 1}));
    REQUIRE(all.waits.size() == 1);
    return all.waits[0];
  };
  // More loads wait for the first than one event goes on with, and one for the second.
  const LeaseId of_crowded = fixture.Lookup(worker, crowded, absl::Seconds(60)).lease;
  for (int i = 0; i < 500; ++i) load(of_crowded);
  const LeaseId of_cancelled = fixture.Lookup(worker, cancelled, absl::Seconds(60)).lease;
  const OpId given_up = load(of_cancelled);
  REQUIRE(said(fixture.Do(ReleaseAsked{worker, others[0]})).reads.size() == 1);
  const Said begun = said(fixture.Do(ReleaseAsked{worker, others[1]}));
  REQUIRE(begun.reads.size() == 1);
  // It gives up before it has heard that its read has begun; the chunk comes, and goes for a store.
  fixture.Do(CancelAsked{given_up});
  fixture.Do(ReleaseAsked{worker, of_cancelled});
  fixture.Do(ReadFinished{begun.reads[0], absl::OkStatus()});
  REQUIRE(fixture.Store(worker, KeysOf({200})).has_value());
  REQUIRE(fixture.core->status().below == 1);
  LeaseId again;
  size_t copies = 0;
  const Effects found = fixture.Do(LookupAsked{worker, RequestTag{++tag}, cancelled, absl::Seconds(60)});
  for (const Effect& effect : found) {
    if (const auto* answer = std::get_if<LookupAnswered>(&effect)) again = answer->lease;
  }
  REQUIRE(again);
  copies += said(found).copies.size();
  const OpId waits = load(again);
  for (int i = 0; i < 100 && fixture.core->has_work(); ++i) {
    for (const OpId op : said(fixture.PassTime(absl::Milliseconds(1))).copies) {
      CHECK(op != waits);  // there is no slot for it
      ++copies;
    }
  }
  CHECK(copies > 300);
  CHECK_FALSE(fixture.core->has_work());
  const Said now = said(fixture.Do(ReleaseAsked{worker, others[2]}));
  CHECK(now.reads.size() == 1);
  REQUIRE(now.copies.size() == 1);
  CHECK(now.copies[0] == waits);
}
