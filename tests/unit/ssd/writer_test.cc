#include "storage/ssd/writer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <string>

#include "tests/unit/ssd/simulated.h"

namespace kvist::ssd {
namespace {

// The records of a segment from its start to the first place that holds none, as a rebuild finds them.
std::vector<RecordHeader> Scan(std::span<const std::byte> file, uint32_t segment) {
  std::vector<RecordHeader> found;
  SegmentHeader use{};
  const std::span<const std::byte, kUnit.value> first(file.data(), kUnit.value);
  if (CheckSegmentHeader(first, DigestOf<StoreId>(1), segment, Simulated::kUnits, &use) != Verdict::kGood) return found;
  Sealer sealer;
  for (uint32_t unit = 1; unit < Simulated::kUnits - 1;) {
    RecordHeader header;
    if (CheckHeader(file.data() + unit * kUnit.value, use, {segment, unit}, &sealer, &header) != Verdict::kGood) break;
    found.push_back(header);
    unit += UnitsFor({header.payload_bytes});
  }
  return found;
}

TEST_CASE("Writer makes shards durable, in order and without gaps") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    for (int i = 0; i < 100; ++i) {
      REQUIRE(world.WriteSome());
      if (world.prng.Percent(50)) world.Turn();
      if (world.prng.Percent(5)) world.drive->writer().Flush();
    }
    world.drive->writer().Flush();
    REQUIRE(world.Settle());
    CHECK(world.durable() == 100);
    CHECK(world.drive->writer().counters().records == 100);
    uint64_t last = 0;
    size_t found = 0;
    for (const auto& [segment, file] : world.files.files) {
      for (const RecordHeader& header : Scan(file.bytes, segment)) {
        CHECK(header.sequence > last);
        last = header.sequence;
        ++found;
      }
    }
    CHECK(found == 100);
    for (const auto& [n, of] : world.stored) CHECK(world.OnDisk(n));
  }
}

TEST_CASE("Writer's durable shards survive a crash at any moment, and no gap lies before one") {
  uint64_t acknowledged = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed, 64, {.sync_bytes = KiB(64)});
    for (int i = 0; i < 60; ++i) {
      if (world.prng.Percent(60)) world.WriteSome();
      if (world.prng.Percent(10)) world.drive->writer().Flush();
      world.Turn();
    }
    acknowledged += world.durable();
    world.disk->Crash();
    std::map<uint64_t, bool> found;
    for (const auto& [segment, file] : world.files.files) {
      for (const RecordHeader& header : Scan(file.bytes, segment)) found[header.sequence] = true;
    }
    for (const auto& [n, of] : world.stored) {
      if (!of.place) continue;
      CHECK(world.OnDisk(n));
      CHECK(found.contains(n));
    }
  }
  CHECK(acknowledged > 3000);
}

TEST_CASE("Writer fences a segment that can't be written, tells which shards are lost, and goes on elsewhere") {
  uint64_t lost = 0;
  uint64_t durable = 0;
  uint64_t fenced = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed, 200, {.sync_bytes = KiB(64)});
    world.disk->set_faults({.write_error = 10, .sync_error = 20});
    for (int i = 0; i < 60; ++i) {
      world.WriteSome();
      world.Turn();
    }
    world.disk->set_faults({});
    REQUIRE(world.Settle());
    for (const auto& [n, of] : world.stored) {
      REQUIRE((of.place || of.error));
      if (of.error) {
        CHECK((*of.error == EIO || *of.error == -1));
        ++lost;
      } else {
        CHECK(world.OnDisk(n));
        ++durable;
      }
    }
    const Writer::Counters& counters = world.drive->writer().counters();
    CHECK(counters.write_errors + counters.sync_errors == world.disk->injected().errors);
    fenced += world.fenced;
    world.disk->Crash();
    for (const auto& [n, of] : world.stored) CHECK((!of.place || world.OnDisk(n)));
  }
  CHECK(lost > 100);
  CHECK(fenced > 100);
  CHECK(durable > 5000);
}

TEST_CASE("Writer is starved, not fenced, when the disk is full, and goes on when there is space") {
  Simulated world(1);
  world.disk->set_faults({.files_max = 2});
  for (int i = 0; i < 40; ++i) REQUIRE(world.Write(1, kUnit * 7));  // eight units each: seven in a segment
  world.Settle();
  CHECK(world.drive->writer().starved());
  CHECK(world.drive->writer().no_file() == ENOSPC);
  CHECK(world.drive->writer().waiting() == 26);
  CHECK(world.durable() == 14);  // what has a place is durable
  CHECK(world.fenced == 0);
  CHECK(world.drive->writer().counters().refused_files == 1);

  world.drive->writer().GiveUp(ENOSPC);
  world.TakeOutcomes();
  CHECK(world.stored.at(40).error == ENOSPC);
  CHECK(world.drive->idle());

  REQUIRE(world.Write(1, kUnit * 7));
  world.Settle();
  CHECK(world.drive->writer().starved());  // nobody has said that there is space
  world.drive->writer().GiveUp(ENOSPC);
  world.TakeOutcomes();
  world.drive->writer().Retry();
  world.Settle();
  CHECK(world.drive->writer().no_file() == ENOSPC);  // there still is none
  world.disk->set_faults({});
  world.drive->writer().Retry();
  world.Settle();
  CHECK(world.drive->writer().no_file() == 0);  // known before anybody writes
  REQUIRE(world.Write(1, kUnit * 7));
  REQUIRE(world.Settle());
  CHECK(world.stored.at(42).place.has_value());
}

TEST_CASE("Writer is starved when all segments are in use, and takes one that is released") {
  Simulated world(2, 2);
  for (int i = 0; i < 20; ++i) REQUIRE(world.Write(1, kUnit * 7));
  world.Settle();
  CHECK(world.drive->writer().starved());
  CHECK(world.drive->writer().no_file() == 0);
  REQUIRE(world.durable() == 14);
  const uint32_t first = world.stored.at(1).place->segment;
  REQUIRE(world.drive->segments().Candidates(1) == std::vector<uint32_t>{first});
  const uint64_t epoch = world.drive->segments().header(first)->epoch;
  for (auto& [n, of] : world.stored) {
    if (of.place && of.place->segment == first) {
      world.drive->segments().Kill(*of.place, 8);
      of.place.reset();
      of.error = -1;
    }
  }
  world.drive->segments().Release(first);
  REQUIRE(world.Settle());
  CHECK(world.stored.at(20).place->segment == first);
  CHECK(world.drive->segments().header(first)->epoch > epoch);
}

TEST_CASE("Writer asks for one sync for what is written meanwhile, and for one at once after Flush") {
  Simulated world(3, 64, {.sync_bytes = GiB(1)});
  for (int i = 0; i < 6; ++i) REQUIRE(world.Write(1, kUnit));
  REQUIRE(world.Settle());
  CHECK(world.drive->writer().counters().syncs <= 2);  // the headers', and the records'
  const uint64_t before = world.drive->writer().counters().syncs;
  // Others keep coming; without Flush it would wait for a gigabyte.
  uint64_t flushed = 0;
  for (int turn = 0; turn < 300; ++turn) {
    if (turn < 200) REQUIRE(world.Write(1, kUnit));
    if (turn == 5) {
      world.drive->writer().Flush();
      flushed = world.next;
    }
    world.Turn();
    if (flushed > 0 && turn < 200 && world.stored.at(flushed).place) break;
  }
  CHECK(world.stored.at(flushed).place.has_value());
  CHECK(world.drive->writer().waiting() + 7 < world.next);
  CHECK(world.drive->writer().counters().syncs > before);
}

TEST_CASE("Writer keeps its rate") {
  Simulated world(4, 2000, {.bytes_per_second = MiB(4)});
  const absl::Time began = world.now;
  uint64_t bytes = 0;
  for (int i = 0; i < 400; ++i) {
    REQUIRE(world.Write(1, kUnit * 7));
    bytes += 8 * kUnit.value;
  }
  REQUIRE(world.Settle());
  const double seconds = absl::ToDoubleSeconds(world.now - began);
  const double rate = static_cast<double>(bytes) / seconds;
  CHECK(rate < 1.05 * (4 << 20));
  CHECK(rate > 0.9 * (4 << 20));
}

TEST_CASE("Writer looks at the device while it seals a large shard") {
  Simulated world(7);
  REQUIRE(world.Write(1, kUnit));
  world.drive->writer().Flush();
  REQUIRE(world.Settle());
  // One on its way, and one that takes eight steps.
  REQUIRE(world.Write(1, kUnit));
  world.drive->writer().Flush();
  REQUIRE(world.Write(16, kUnit));
  int looks = 0;
  std::optional<int> first_durable;
  for (; world.drive->queue().waiting_to_write().value == 0 && world.drive->queue().writing().value <= (kUnit * 2).value;
       ++looks) {
    REQUIRE(looks < 100);
    if (!first_durable && world.stored.at(2).place) first_durable = looks;
    world.Turn();
    if (world.stored.at(3).place) break;
    if (looks < 6) CHECK(world.drive->writer().wake_at() == absl::InfinitePast());
  }
  CHECK(looks >= 7);
  REQUIRE(first_durable);
  CHECK(*first_durable < looks);
  REQUIRE(world.Settle());
  CHECK(world.OnDisk(3));
}

TEST_CASE("Writer ends a shard that is being sealed when its segment is fenced, and touches it no more") {
  int met = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    REQUIRE(world.Write(1, kUnit));
    world.drive->writer().Flush();
    REQUIRE(world.Settle());
    REQUIRE(world.Write(1, kUnit));
    REQUIRE(world.Write(16, kUnit));
    world.disk->set_faults({.write_error = 1000});
    std::vector<std::byte> slot;
    for (int turn = 0; turn < 100 && !world.stored.at(3).error; ++turn) world.Turn();
    REQUIRE(world.stored.at(3).error == EIO);
    const std::byte* const at = world.stored.at(3).slot.data();
    slot.assign(at, at + world.stored.at(3).slot.size().value);
    met += std::memcmp(at, &kRecordMagic, sizeof kRecordMagic) != 0;  // it hadn't become a record
    world.disk->set_faults({});
    REQUIRE(world.Settle());
    CHECK(std::equal(slot.begin(), slot.end(), at));
    REQUIRE(world.Write(1, kUnit));
    REQUIRE(world.Settle());
    CHECK(world.stored.at(4).place);
  }
  CHECK(met > 40);
}

TEST_CASE("Writer takes no more than may wait") {
  Simulated world(5, 64, {.queue_max = 3});
  CHECK(world.WriteSome());
  CHECK(world.WriteSome());
  CHECK(world.WriteSome());
  CHECK_FALSE(world.WriteSome());
  REQUIRE(world.Settle());
  CHECK(world.WriteSome());
  REQUIRE(world.Settle());
}

TEST_CASE("Writer makes no file before there is something to write") {
  Simulated world(6);
  for (int i = 0; i < 10; ++i) world.Turn();
  CHECK(world.files.files.empty());
}

}  // namespace
}  // namespace kvist::ssd
