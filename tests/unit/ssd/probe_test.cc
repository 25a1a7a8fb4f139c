#include "storage/ssd/probe.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "storage/base/clock.h"
#include "storage/ssd/format.h"

namespace kvist::ssd {
namespace {

// A device that serves any number of operations at the same time, each in `latency`, and writes down what it was asked for.
class Asked final : public Device {
 public:
  explicit Asked(absl::Duration latency) : Device({"asked", {}, true}), latency_(latency) {}

  void Submit(const Io& io) override {
    asked.push_back(io);
    ends_.push_back({{io.tag, io.kind == fails_kind && error != 0 ? error : 0}, MonotonicNow() + latency_});
    bytes_in_flight += io.bytes.size();
    bytes_.push_back(io.bytes.size());
    most_in_flight = std::max(most_in_flight, ends_.size());
    most_bytes = std::max(most_bytes, bytes_in_flight);
  }
  void Kick() override {}
  void Wait(absl::Time, std::vector<Completion>* ended) override {
    REQUIRE_FALSE(ends_.empty());  // it would wait for ever
    const absl::Duration left = ends_.front().when - MonotonicNow();
    if (left > absl::ZeroDuration()) std::this_thread::sleep_for(absl::ToChronoNanoseconds(left));
    while (!ends_.empty() && ends_.front().when <= MonotonicNow()) {
      ended->push_back(ends_.front().completion);
      ends_.pop_front();
      bytes_in_flight -= bytes_.front();
      bytes_.pop_front();
    }
  }
  void Wake() override {}
  uint32_t depth() const override { return 16; }
  void Remove(uint32_t) override {}
  absl::Status Register(std::span<std::byte>) override { return absl::OkStatus(); }
  bool quiet() const { return ends_.empty(); }

  std::vector<Io> asked;
  Io::Kind fails_kind = Io::Kind::kRead;
  int error = 0;
  size_t most_in_flight = 0;
  uint64_t bytes_in_flight = 0, most_bytes = 0;

 private:
  struct End {
    Completion completion;
    absl::Time when;
  };
  const absl::Duration latency_;
  std::deque<End> ends_;  // in their order: all take as long
  std::deque<uint64_t> bytes_;
};

TEST_CASE("Probe finds that a device that serves all at once wants as much as it tries") {
  // Ten times as long as anything else here takes, so that twice in flight is twice as fast on a busy machine, too.
  Asked device(absl::Milliseconds(2));
  const auto result = Probe(&device, MiB(32), {.segment = 7, .may_write = true, .time = absl::Seconds(2)});
  REQUIRE(result.ok());
  CHECK(result->queue.read_budget >= MiB(16));  // or what it does in 6 ms
  CHECK(result->queue.write_budget >= MiB(16));
  CHECK(result->read_bytes_per_second > 0);
  CHECK(result->write_bytes_per_second > 0);
  CHECK(device.quiet());
  CHECK(device.most_in_flight <= device.depth());
  CHECK(device.most_bytes <= MiB(8).value);

  REQUIRE(device.asked.front().kind == Io::Kind::kAllocate);
  uint64_t written_to = 0;
  size_t syncs = 0;
  for (const Io& io : device.asked) {
    CHECK(io.segment == 7);
    if (io.kind == Io::Kind::kSync) ++syncs;
    if (io.kind != Io::Kind::kRead && io.kind != Io::Kind::kWrite) continue;
    const uint64_t end = io.offset.value + io.bytes.size();
    const bool whole = io.offset.value % kUnit.value == 0 && io.bytes.size() % kUnit.value == 0 && io.bytes.size() > 0;
    CHECK(whole);
    CHECK(end <= MiB(32).value);
    if (io.kind == Io::Kind::kWrite) written_to = std::max(written_to, end);
    if (io.kind == Io::Kind::kRead) CHECK(end <= written_to);  // what was never written is read without asking the disk
  }
  CHECK(syncs == 1);
}

TEST_CASE("Probe only reads where there is data") {
  Asked device(absl::Microseconds(50));
  const auto result = Probe(&device, MiB(4), {.segment = 3, .time = absl::Milliseconds(40)});
  REQUIRE(result.ok());
  CHECK(result->queue.write_budget == IoQueue::Options{}.write_budget);
  CHECK(result->write_bytes_per_second == 0);
  CHECK(result->queue.read_budget >= MiB(8));
  CHECK(std::all_of(device.asked.begin(), device.asked.end(), [](const Io& io) { return io.kind == Io::Kind::kRead; }));
  CHECK_FALSE(device.asked.empty());
}

TEST_CASE("Probe says what the device said, and leaves nothing in flight") {
  struct Case {
    Io::Kind kind;
    int error;
    absl::StatusCode code;
  };
  const Case cases[] = {{Io::Kind::kAllocate, ENOSPC, absl::StatusCode::kResourceExhausted},
                        {Io::Kind::kWrite, EACCES, absl::StatusCode::kPermissionDenied},
                        {Io::Kind::kSync, ENOSPC, absl::StatusCode::kResourceExhausted},
                        {Io::Kind::kRead, EACCES, absl::StatusCode::kPermissionDenied}};
  for (const Case& c : cases) {
    INFO("kind " << static_cast<int>(c.kind));
    Asked device(absl::Microseconds(50));
    device.fails_kind = c.kind;
    device.error = c.error;
    const auto result = Probe(&device, MiB(4), {.segment = 0, .may_write = true, .time = absl::Milliseconds(20)});
    CHECK(result.status().code() == c.code);
    CHECK(device.quiet());
  }
}

TEST_CASE("Probe refuses segments that are too small to tell anything") {
  Asked device(absl::Microseconds(1));
  const auto result = Probe(&device, KiB(512), {});
  CHECK(absl::IsInvalidArgument(result.status()));
  CHECK(absl::StrContains(result.status().message(), "1 MiB"));
  CHECK(device.asked.empty());
}

}  // namespace
}  // namespace kvist::ssd
