// Rows 1 and 2 of the fault matrix, for engines with gigabytes: kvistd is the last who has a killed engine's memory, and freeing it takes the
// kernel a while that no other engine may notice.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/sanitizers.h"
#include "tests/support/schedulers_lateness.h"
#include "tests/support/temp_dir.h"

using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::SchedulersLateness;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

using Clock = std::chrono::steady_clock;

int64_t MicrosSince(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

// Memory of memfds and tmpfs on this machine.
uint64_t SharedKiB() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("Shmem:")) return std::stoull(line.substr(std::strlen("Shmem:")));
  }
  return 0;
}

// An engine that asks again and again, and how long it once had to wait.
class Asking {
 public:
  explicit Asking(const DaemonProcess& daemon) : engine_(FakeEngine::On(daemon.socket(), "asking")) {
    REQUIRE(engine_.status.message == "");
    const auto keys = engine_.Keys(1, 8);
    REQUIRE(engine_.StoreAll(keys).status == KVIST_OK);
    thread_ = std::thread([this, keys] {
      while (!stop_) {
        const auto begin = Clock::now();
        if (engine_.scheduler().Lookup(keys, 0, 10'000'000).chunks != 8) ++misses_;
        longest_us_ = std::max<int64_t>(longest_us_, MicrosSince(begin));
        ++answers_;
      }
    });
  }
  ~Asking() {
    stop_ = true;
    thread_.join();
    CHECK(misses_ == 0);
  }
  // Of all that were asked before this call, too.
  int64_t longest_us() const {
    const int64_t answers = answers_;
    CHECK(Eventually([&] { return answers_ > answers + 1; }));
    return longest_us_;
  }

 private:
  FakeEngine engine_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> longest_us_{0}, misses_{0}, answers_{0};
  std::thread thread_;
};

}  // namespace

TEST_CASE("Rows 1, 2: no engine waits while the memory of one that was killed is freed") {
  constexpr uint64_t kGiB = uint64_t{1} << 30, kBytes = 2 * kGiB;
  constexpr uint32_t kLayers = 4, kSegmentBytes = 64 << 10;
  constexpr auto kPages = static_cast<uint32_t>(kBytes / (kLayers * 2 * kSegmentBytes));
  const bool sealed = GENERATE(true, false);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  const uint64_t before = SharedKiB();
  ChildProcess large([&] {
    FakeEngine::Options options = FakeEngine::On(daemon.socket(), "large");
    options.pages = kPages;
    options.layers = kLayers;
    options.segment_bytes = kSegmentBytes;
    options.sealed = sealed;
    FakeEngine engine(options);
    if (!engine.status.ok()) return 1;
    std::memset(engine.memory(0).data(), 1, engine.memory(0).size());
    if (engine.StoreAll(engine.Keys(2, 2)).status != KVIST_OK) return 2;
    while (true) ::pause();
    return 0;
  });
  REQUIRE(Eventually([&] { return StatusOf(daemon)["chunks_stored"] == 2; }));
  REQUIRE(SharedKiB() > before + kBytes / 1024 / 2);  // others may free some meanwhile

  int64_t longest = 0, late = 0;
  Clock::time_point died;
  {
    const Asking asking(daemon);
    const SchedulersLateness scheduler;
    died = Clock::now();
    large.Kill();
    CHECK(Eventually([&] { return SharedKiB() < before + kBytes / 1024 / 2; }));
    longest = asking.longest_us();
    late = scheduler.longest_us();
  }
  const double freed = static_cast<double>(MicrosSince(died)) / 1e3;
  std::printf(
      "rows 1, 2: %s memory of 2 GiB of a killed engine was free after %.0f ms; another engine waited for %.1f ms at most, "
      "the "
      "scheduler was late by %.1f\n",
      sealed ? "sealed" : "unsealed", freed, static_cast<double>(longest) / 1e3, static_cast<double>(late) / 1e3);
  // Freed on the way it takes 45 ms a GiB and more.
  if (!kvist::test::kSanitized) CHECK(longest <= 30'000 + 2 * late);
}
