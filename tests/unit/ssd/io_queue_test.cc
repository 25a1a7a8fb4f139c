#include "storage/ssd/io_queue.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <map>
#include <vector>

namespace kvist::ssd {
namespace {

// Keeps what is submitted until the test ends it.
class ManualDevice final : public Device {
 public:
  ManualDevice() : Device({"by hand", {}, true}) {}
  void Submit(const Io& io) override { submitted.push_back(io); }
  void Kick() override { ++kicks; }
  void Wait(absl::Time, std::vector<Completion>*) override {}
  void Wake() override {}
  uint32_t depth() const override { return 6; }
  void Remove(uint32_t) override {}
  absl::Status Register(std::span<std::byte>) override { return absl::OkStatus(); }
  std::vector<Io> submitted;
  int kicks = 0;
};

struct World final : IoOwner {
  ManualDevice device;
  IoQueue queue{&device,
                {.piece = KiB(64), .read_budget = KiB(256), .write_budget = KiB(128), .write_beside_reads = KiB(64)}};
  std::vector<std::byte> memory{MiB(4).value};
  std::map<uint64_t, int> ended;

  void Ended(uint64_t tag, int error) override { REQUIRE(ended.emplace(tag, error).second); }
  IoQueue::Handle Ask(IoQueue::Lane lane, uint64_t bytes, uint64_t tag) {
    const auto kind = lane == IoQueue::Lane::kWrite ? Io::Kind::kWrite : bytes == 0 ? Io::Kind::kSync : Io::Kind::kRead;
    return queue.Submit(lane, this, {kind, 0, {tag << 20}, {memory.data(), bytes}, tag});
  }
  void Complete(size_t at, int error = 0) {
    const Io io = device.submitted.at(at);
    device.submitted.erase(device.submitted.begin() + static_cast<ptrdiff_t>(at));
    queue.Complete({io.tag, error});
    queue.Pump();
  }
  void End(size_t at, int error = 0) {
    Complete(at, error);
    while (queue.TellNext()) queue.Pump();
  }
  void EndAll() {
    while (!device.submitted.empty()) End(0);
  }
  uint64_t InFlight(Io::Kind kind) const {
    uint64_t bytes = 0;
    for (const Io& io : device.submitted) bytes += io.kind == kind ? io.bytes.size() : 0;
    return bytes;
  }
};

TEST_CASE("The device has all that it may have before anybody hears what it has brought") {
  World world;
  for (uint64_t tag = 1; tag <= 8; ++tag) world.Ask(IoQueue::Lane::kRead, KiB(64).value, tag);
  world.queue.Pump();
  REQUIRE(world.device.submitted.size() == 4);
  for (int i = 0; i < 4; ++i) world.Complete(0);
  CHECK(world.ended.empty());
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(256).value);
  CHECK_FALSE(world.queue.idle());
  for (uint64_t told = 1; world.queue.TellNext(); ++told) CHECK(world.ended.size() == told);  // one at a time
  CHECK(world.ended.size() == 4);
  for (int i = 0; i < 4; ++i) world.Complete(0);
  CHECK_FALSE(world.queue.idle());  // four aren't told
  while (world.queue.TellNext()) {}
  CHECK(world.ended.size() == 8);
  CHECK(world.queue.idle());
}

TEST_CASE("What is left of an extent that isn't worth a piece goes with the last one") {
  World world;
  world.Ask(IoQueue::Lane::kRead, (KiB(128) + KiB(4)).value, 1);
  world.Ask(IoQueue::Lane::kRead, (KiB(64) + KiB(32)).value, 2);
  world.queue.Pump();
  std::vector<uint64_t> pieces;
  for (const Io& io : world.device.submitted) pieces.push_back(io.bytes.size());
  CHECK(pieces == std::vector<uint64_t>{KiB(64).value, KiB(68).value, KiB(64).value, KiB(32).value});
  world.EndAll();
  CHECK(world.ended.size() == 2);
}

TEST_CASE("IoQueue cuts extents into pieces that are the extent, and keeps within its budgets") {
  World world;
  world.Ask(IoQueue::Lane::kRead, KiB(300).value, 1);
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(256).value);
  uint64_t next = 1 << 20;
  for (const Io& io : world.device.submitted) {
    CHECK(io.offset.value == next);
    CHECK(io.bytes.data() == world.memory.data() + (next - (1 << 20)));
    next += io.bytes.size();
  }
  world.End(2);
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(3 * 64 + 44).value);
  CHECK(world.ended.empty());
  world.EndAll();
  CHECK(world.ended == std::map<uint64_t, int>{{1, 0}});
  CHECK(world.queue.idle());
  CHECK(world.queue.reading().value == 0);
}

TEST_CASE("IoQueue lets urgent reads go before reads and reads before writes") {
  World world;
  world.Ask(IoQueue::Lane::kWrite, KiB(640).value, 1);
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kWrite) == KiB(128).value);  // nobody reads
  world.Ask(IoQueue::Lane::kRead, KiB(1024).value, 2);
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(256).value);
  world.End(0);
  world.End(0);  // of the writes one piece at a time goes on
  CHECK(world.InFlight(Io::Kind::kWrite) == KiB(64).value);
  world.Ask(IoQueue::Lane::kUrgent, KiB(64).value, 3);
  world.End(0);
  CHECK(world.device.submitted.size() == 6 - 1);
  CHECK(std::any_of(world.device.submitted.begin(), world.device.submitted.end(),
                    [](const Io& io) { return io.offset.value == 3 << 20; }));
  world.EndAll();
  CHECK(world.ended.size() == 3);
  CHECK(world.queue.idle());
}

TEST_CASE("IoQueue begins no other read until an urgent one that has begun is told of") {
  World world;
  world.Ask(IoQueue::Lane::kUrgent, KiB(128).value, 1);
  world.Ask(IoQueue::Lane::kRead, KiB(64).value, 2);
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(128).value);
  world.End(0);
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(64).value);
  CHECK(world.ended.empty());
  world.Complete(0);
  CHECK(world.InFlight(Io::Kind::kRead) == 0);
  CHECK(world.queue.TellNext());
  CHECK(world.ended == std::map<uint64_t, int>{{1, 0}});
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(64).value);
  // One that is cancelled keeps nobody up, whether it had begun or not.
  const auto begun = world.Ask(IoQueue::Lane::kUrgent, KiB(640).value, 3);
  const auto waits = world.Ask(IoQueue::Lane::kUrgent, KiB(64).value, 4);
  world.Ask(IoQueue::Lane::kRead, KiB(64).value, 5);
  world.queue.Pump();
  world.queue.Cancel(begun);
  world.queue.Cancel(waits);
  world.EndAll();
  CHECK(world.ended == std::map<uint64_t, int>{{1, 0}, {2, 0}, {3, ECANCELED}, {4, ECANCELED}, {5, 0}});
  CHECK(world.queue.idle());
  CHECK(world.device.kicks > 0);
}

TEST_CASE("The less is left to read the less is in flight, down to what is worth a wait") {
  World world;
  IoQueue::Options options = world.queue.options();
  options.last_reads = KiB(128);
  world.queue.set_options(options);
  world.Ask(IoQueue::Lane::kRead, KiB(768).value, 1);
  world.queue.Pump();
  for (const uint64_t in_flight : {256, 256, 256, 256, 256, 256, 192, 192, 128, 128, 128, 64}) {
    CHECK(world.InFlight(Io::Kind::kRead) == KiB(in_flight).value);
    world.End(0);
  }
  CHECK(world.queue.idle());
  // What is urgent isn't held back.
  world.Ask(IoQueue::Lane::kUrgent, KiB(320).value, 2);
  world.queue.Pump();
  CHECK(world.InFlight(Io::Kind::kRead) == KiB(256).value);
  world.EndAll();
}

TEST_CASE("IoQueue submits no more than the device takes") {
  World world;
  for (uint64_t tag = 0; tag < 20; ++tag) world.Ask(IoQueue::Lane::kControl, 0, tag);
  world.queue.Pump();
  CHECK(world.device.submitted.size() == world.device.depth());
  world.EndAll();
  CHECK(world.ended.size() == 20);
}

TEST_CASE("IoQueue says an error once, when the extent is quiet, and reads no more of it") {
  World world;
  world.Ask(IoQueue::Lane::kRead, KiB(640).value, 1);
  world.queue.Pump();
  world.End(1, EIO);
  CHECK(world.ended.empty());
  CHECK(world.device.submitted.size() == 3);
  world.EndAll();
  CHECK(world.ended == std::map<uint64_t, int>{{1, EIO}});
  CHECK(world.queue.idle());
  CHECK(world.queue.reading().value == 0);
}

TEST_CASE("IoQueue cancels what isn't in flight yet") {
  World world;
  const auto first = world.Ask(IoQueue::Lane::kRead, KiB(256).value, 1);
  const auto second = world.Ask(IoQueue::Lane::kRead, KiB(640).value, 2);
  const auto third = world.Ask(IoQueue::Lane::kRead, KiB(64).value, 3);
  world.queue.Pump();
  world.queue.Cancel(first);  // all in flight: it ends as it ends
  world.queue.Cancel(third);
  world.End(0);  // the second begins
  world.queue.Cancel(second);
  world.EndAll();
  CHECK(world.ended == std::map<uint64_t, int>{{1, 0}, {2, ECANCELED}, {3, ECANCELED}});
  CHECK(world.queue.idle());
}

}  // namespace
}  // namespace kvist::ssd
