// A device of a store over a simulated disk, without its thread.
#include "storage/ssd/store_device.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/sim/prng.h"
#include "tests/support/sim_disk.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

struct DeviceWorld final : StoreDevice::Listener {
  static constexpr uint32_t kUnits = 32;

  explicit DeviceWorld(uint64_t seed, uint32_t segments = 8, std::vector<SegmentHeader> found = {}) : prng(seed) {
    for (const SegmentHeader& header : found) files.Make(header.segment, kUnits * kUnit.value);
    auto made = std::make_unique<kvist::test::SimDisk>(&files, kUnits * kUnit.value, &prng);
    disk = made.get();
    StoreDevice::Options options;
    options.directory = "/ssd";
    options.drive.segments = {.device = 0, .segments = segments, .units = kUnits};
    options.drive.writer.store = DigestOf<StoreId>(1);
    options.drive.writer.announce = true;
    options.drive.writer.draw_secret = [this] { return SecretOf(static_cast<uint8_t>(++secrets)); };
    options.probe = false;
    options.found = std::move(found);
    device.emplace(std::move(made), std::move(options), this);
  }

  void Write(uint64_t n) {
    const RecordHeader header = ShardHeader(n, 2, kUnit);
    AlignedBytes& slot = slots.emplace(n, kUnit * 3).first->second;
    FillPayload(slot.data(), n, header.payload_bytes);
    device->Post([shard = Writer::Shard{.ticket = n, .slot = slot.data(), .header = header, .description = "a space"}](
                     StoreDevice& d) {
      d.Write(shard);
      d.drive().writer().Flush();
    });
  }
  // Of what Write(n) has written.
  void Read(uint64_t n, Reader::Order order) {
    AlignedBytes& slot = slots.emplace(n + 1000, kUnit * 3).first->second;
    device->Post([this, n, order, at = slot.data()](StoreDevice& d) {
      const Reader::Shard shard{.ticket = n,
                                .slot = at,
                                .place = outcomes.at(n).place,
                                .identity = IdentityOf(ShardHeader(n, 2, kUnit)),
                                .runs = 2,
                                .run_bytes = kUnit};
      d.Read({&shard, 1}, order);
    });
  }
  void Turn(int times = 1) {
    for (int i = 0; i < times; ++i) {
      now += step;
      device->Turn(now, absl::InfinitePast());
      device->drive().segments().CheckInvariants();
    }
  }
  void Settle() { Turn(200); }

  void ShardWritten(const Writer::Outcome& outcome) override { CHECK(outcomes.emplace(outcome.ticket, outcome).second); }
  void ShardRead(const Reader::Progress& progress) override {
    if (progress.ended) reads.emplace(progress.ticket, progress);
  }
  void Announced(const SegmentHeader& header) override {
    announced.push_back(header);
    // Nothing of the use is on the disk yet.
    const auto it = files.files.find(header.segment);
    if (it != files.files.end()) {
      SegmentHeader found{};
      std::memcpy(&found, it->second.bytes.data(), sizeof found);
      CHECK(found.epoch < header.epoch);
    }
    if (admits) device->Post([header](StoreDevice& d) { d.drive().writer().Admit(header); });
  }
  void Settled(uint32_t segment) override { settled.push_back(segment); }
  void Fenced(uint32_t segment) override { fenced.push_back(segment); }
  void Empty(uint32_t segment) override {
    CHECK(std::find(empty.begin(), empty.end(), segment) == empty.end());
    empty.push_back(segment);
  }
  void WantsBack(const SegmentHeader& header) override { wanted.push_back(header.segment); }
  void Writable(uint32_t, bool writable, const std::string& why) override { said.emplace_back(writable, why); }

  sim::Prng prng;
  kvist::test::SimFiles files;
  kvist::test::SimDisk* disk = nullptr;
  std::map<uint64_t, AlignedBytes> slots;
  uint32_t secrets = 0;
  bool admits = true;
  absl::Duration step = absl::Milliseconds(1);
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::map<uint64_t, Writer::Outcome> outcomes;
  std::map<uint64_t, Reader::Progress> reads;
  std::vector<SegmentHeader> announced;
  std::vector<uint32_t> settled, fenced, empty, wanted;
  std::vector<std::pair<bool, std::string>> said;
  std::optional<StoreDevice> device;
};

TEST_CASE("A device has told all that it has to tell before it sleeps") {
  DeviceWorld world(1);
  world.admits = false;  // so nothing gets a place, and nothing is in flight
  world.Write(1);
  world.Settle();
  REQUIRE(world.outcomes.empty());
  std::optional<size_t> told;
  world.disk->before_sleep = [&] { told = world.outcomes.size(); };
  world.device->Post([](StoreDevice& d) { d.drive().writer().GiveUp(EIO); });
  world.device->Turn(world.now, absl::InfiniteFuture());
  CHECK(told == 1);
}

TEST_CASE("StoreDevice writes nothing to a segment before its row is committed") {
  DeviceWorld world(1);
  world.admits = false;
  world.Write(1);
  world.Settle();
  REQUIRE(world.announced.size() == 1);
  CHECK(world.outcomes.empty());
  const auto& bytes = world.files.files.at(world.announced[0].segment).bytes;
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  world.device->Post([h = world.announced[0]](StoreDevice& d) { d.drive().writer().Admit(h); });
  world.Settle();
  REQUIRE(world.outcomes.size() == 1);
  CHECK(world.outcomes.at(1).error == 0);
}

TEST_CASE("StoreDevice describes a space once in each segment, before its first shard") {
  DeviceWorld world(2, 16);
  for (uint64_t n = 1; n <= 40; ++n) {
    world.Write(n);
    world.Settle();
  }
  REQUIRE(world.outcomes.size() == 40);
  std::map<uint32_t, uint32_t> first;  // unit of the first shard
  for (const auto& [n, outcome] : world.outcomes) {
    REQUIRE(outcome.error == 0);
    const auto at = first.try_emplace(outcome.place.segment, outcome.place.unit).first;
    at->second = std::min(at->second, outcome.place.unit);
  }
  CHECK(first.size() >= 4);
  Sealer sealer;
  for (const SegmentHeader& header : world.announced) {
    if (!first.contains(header.segment)) continue;
    RecordHeader record{};
    const std::byte* const unit = world.files.files.at(header.segment).bytes.data() + kUnit.value;
    REQUIRE(CheckHeader(unit, header, {header.segment, 1}, &sealer, &record) == Verdict::kGood);
    CHECK(record.kind == RecordKind::kSpace);
    CHECK(CheckPayload(unit, record) == Verdict::kGood);
    CHECK(std::memcmp(unit + kHeaderBytes.value, "a space", 7) == 0);
    CHECK(first.at(header.segment) == 1 + UnitsFor({7}));  // and no other one follows
  }
  CHECK(world.device->drive().segments().live_units() == 40 * 3);  // descriptions aren't wanted for themselves
}

TEST_CASE("StoreDevice tells of segments in which nothing is wanted, once, and uses them again when they are released") {
  DeviceWorld world(3, 4);
  world.device->Recovered();
  uint64_t n = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 9; ++i) {
      world.Write(++n);
      world.Settle();
      REQUIRE(world.outcomes.at(n).error == 0);
    }
    for (uint64_t k = n - 8; k <= n; ++k) {
      world.device->Post([place = world.outcomes.at(k).place](StoreDevice& d) { d.Kill(place, 3); });
    }
    world.Settle();
    CHECK(world.empty.empty() == (round == 0));  // the open one is nothing to give back
    for (const uint32_t segment : std::exchange(world.empty, {})) {
      CHECK(world.device->drive().segments().live_units(segment) == 0);
      world.device->Post([segment](StoreDevice& d) { d.Release(segment); });
    }
    world.Settle();
  }
  CHECK(world.device->row().segments_released >= 9);
}

TEST_CASE("StoreDevice asks for segments when few are free and somebody writes, one after the other") {
  DeviceWorld world(4, 6);
  world.device->Recovered();
  world.Settle();
  CHECK(world.wanted.empty());
  uint64_t n = 0;
  while (world.wanted.empty() && n < 60) {
    world.Write(++n);
    world.Settle();
  }
  REQUIRE(world.wanted.size() == 1);
  CHECK(world.device->drive().segments().free_segments() == 1);
  world.Settle();
  CHECK(world.wanted.size() == 1);  // the owner hasn't answered yet
  world.device->AskAgain(world.now);
  world.Write(++n);
  world.Settle();
  REQUIRE(world.wanted.size() == 2);
  CHECK(world.wanted[0] != world.wanted[1]);
}

TEST_CASE("StoreDevice without room gives up what waits, in the end") {
  DeviceWorld world(5, 4);
  world.device->Recovered();
  uint64_t n = 0;
  for (; n < 60;) world.Write(++n);
  world.step = absl::Milliseconds(10);
  world.Turn(400);
  REQUIRE(world.outcomes.size() == n);
  size_t refused = 0;
  for (const auto& [ticket, outcome] : world.outcomes) refused += outcome.error == ENOSPC;
  CHECK(refused > 20);
  CHECK(world.said.empty());  // it can be written when something is given back
}

TEST_CASE("StoreDevice of a full file system says so, and tries again") {
  DeviceWorld world(6, 8);
  world.disk->set_faults({.files_max = 1});
  world.device->Recovered();
  for (uint64_t n = 1; n <= 20; ++n) world.Write(n);
  world.Settle();
  REQUIRE(world.said.size() == 1);
  CHECK_FALSE(world.said[0].first);
  CHECK(absl::StrContains(world.said[0].second, "/ssd"));
  CHECK(absl::StrContains(world.said[0].second, "free some space"));
  CHECK(world.outcomes.size() == 20);
  CHECK(world.outcomes.at(1).error == 0);
  CHECK(world.outcomes.at(20).error == ENOSPC);
  CHECK(world.wanted.size() == 1);  // what is in the full one
  world.step = absl::Milliseconds(10);
  world.Turn(500);
  CHECK(world.device->drive().writer().counters().refused_files >= 4);  // each second once
  CHECK(world.said.size() == 1);                                        // and not a word of it
  world.disk->set_faults({});
  world.Turn(200);
  REQUIRE(world.said.size() == 2);
  CHECK(world.said[1].first);
  world.Write(21);
  world.Settle();
  CHECK(world.outcomes.at(21).error == 0);
}

TEST_CASE("StoreDevice that may open no more files says so, gives no segment up, and tries again") {
  DeviceWorld world(6, 8);
  world.disk->set_faults({.files_max = 1, .no_file = EMFILE});
  world.device->Recovered();
  for (uint64_t n = 1; n <= 20; ++n) world.Write(n);
  world.Settle();
  REQUIRE(world.said.size() == 1);
  CHECK_FALSE(world.said[0].first);
  CHECK(absl::StrContains(world.said[0].second, "LimitNOFILE"));
  CHECK(world.outcomes.at(1).error == 0);
  CHECK(world.outcomes.at(20).error == EMFILE);
  CHECK(world.fenced.empty());
  // What lies there can be read, and no room that it gave would help.
  world.step = absl::Milliseconds(100);
  world.Turn(100);
  CHECK(world.wanted.empty());
  world.step = absl::Milliseconds(1);
  world.disk->set_faults({});
  world.now += absl::Seconds(1);
  world.Settle();
  CHECK(world.said.back().first);
  world.Write(21);
  world.Settle();
  CHECK(world.outcomes.at(21).error == 0);
}

TEST_CASE("StoreDevice of a full file system uses again what it has there") {
  DeviceWorld world(8, 16);
  world.disk->set_faults({.files_max = 4});
  world.device->Recovered();
  uint64_t n = 0;
  size_t answered = 0;
  for (int round = 0; round < 100; ++round) {
    world.Write(++n);
    world.Settle();
    for (; answered < world.wanted.size(); ++answered) {  // the owner does without all of it
      const uint32_t segment = world.wanted[answered];
      for (const auto& [ticket, outcome] : world.outcomes) {
        if (outcome.error == 0 && outcome.place.segment == segment) world.device->Kill(outcome.place, outcome.units);
      }
      world.device->AskAgain(world.now);
    }
    world.Settle();
    for (const uint32_t segment : std::exchange(world.empty, {})) {
      std::erase_if(world.outcomes, [&](const auto& o) { return o.second.place.segment == segment; });
      world.device->Release(segment);
    }
    world.Settle();
  }
  CHECK(world.said.empty());  // there was room all the time
  for (const auto& [ticket, outcome] : world.outcomes) CHECK(outcome.error == 0);
  CHECK(world.device->drive().writer().counters().records == n);
  CHECK(world.wanted.size() > 5);
}

TEST_CASE("StoreDevice asks for what lies beyond its capacity, whoever keeps it, and for what it needs none the later") {
  const uint32_t surplus = 9 * kDevicesMax;  // of eight
  DeviceWorld world(9, 8, {MakeSegmentHeader(DigestOf<StoreId>(1), surplus, DeviceWorld::kUnits, 1, SecretOf(1))});
  world.device->AddLive(surplus, 3);
  world.device->Recovered();
  world.Settle();
  REQUIRE(world.wanted == std::vector<uint32_t>{surplus});
  world.device->AskAgain(world.now);  // the owner keeps it
  world.step = absl::Milliseconds(100);
  world.Turn(50);
  CHECK(world.wanted.size() == 1);
  world.Turn(100);
  CHECK(world.wanted.size() == 2);  // some seconds later
  // Room is needed right after that.
  world.device->AskAgain(world.now);
  world.Turn(2);
  world.step = absl::Milliseconds(1);
  world.wanted.clear();
  for (uint64_t n = 1; n <= 70 && world.wanted.size() < 2; ++n) {
    const size_t asked = world.wanted.size();
    world.Write(n);
    world.Turn(5);
    if (world.wanted.size() > asked) world.device->AskAgain(world.now);
  }
  CHECK(std::any_of(world.wanted.begin(), world.wanted.end(), [&](uint32_t segment) { return segment != surplus; }));
  // It goes when the owner has it no more, file and all.
  REQUIRE(world.files.files.contains(surplus));
  world.device->Kill({surplus, 1}, 3);
  world.Settle();
  REQUIRE(world.empty == std::vector<uint32_t>{surplus});
  world.device->Release(surplus);
  CHECK_FALSE(world.files.files.contains(surplus));
}

TEST_CASE("StoreDevice whose disk fails again and again takes no more, and neither reads what is fenced") {
  DeviceWorld world(7, 32);
  world.Write(1);
  world.Settle();
  REQUIRE(world.outcomes.at(1).error == 0);
  world.disk->set_faults({.write_error = 1000});
  uint64_t n = 1;
  while (world.said.empty() && n < 60) {
    world.Write(++n);
    world.Settle();
    CHECK(world.outcomes.at(n).error == EIO);
  }
  REQUIRE(world.said.size() == 1);
  CHECK_FALSE(world.said[0].first);
  CHECK(absl::StrContains(world.said[0].second, "replace the disk"));
  CHECK(world.fenced.size() == 3);
  world.disk->set_faults({});
  world.Write(++n);
  world.Settle();
  CHECK(world.outcomes.at(n).error == EIO);  // not trusted again
  world.Read(1, Reader::Order::kWhole);
  world.Settle();
  REQUIRE(world.reads.size() == 1);
  CHECK(world.reads.at(1).error == EIO);
  CHECK(world.device->row().write_errors >= 3);
}

TEST_CASE("StoreDevice tells in the same turn of a read whose first part fails while others wait behind it") {
  DeviceWorld world(8);
  world.Write(1);
  world.Settle();
  REQUIRE(world.outcomes.at(1).error == 0);
  world.disk->set_faults({.read_error = 1000});
  world.Read(1, Reader::Order::kByLayer);  // layer 1 isn't asked for until layer 0 is there
  world.device->Stop();
  for (int i = 0; i < 1000 && !world.device->ended(); ++i) world.Turn();
  REQUIRE(world.reads.size() == 1);  // there is no other turn in which it could
  CHECK(world.reads.at(1).error == EIO);
}

TEST_CASE("StoreDevice that stops ends all that it was given") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    DeviceWorld world(seed, 8);
    world.admits = seed % 3 != 0;
    const uint64_t count = 1 + seed;
    for (uint64_t n = 1; n <= count; ++n) world.Write(n);
    world.Turn(static_cast<int>(seed % 7));
    world.device->Stop();
    for (int i = 0; i < 1000 && !world.device->ended(); ++i) world.Turn();
    CHECK(world.device->ended());
    REQUIRE(world.outcomes.size() == count);
    for (const auto& [n, outcome] : world.outcomes) CHECK((outcome.error == 0 || outcome.error == ECANCELED));
  }
}

}  // namespace
}  // namespace kvist::ssd
