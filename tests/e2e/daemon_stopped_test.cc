// Row 26 of the fault matrix: kvistd stopped by SIGSTOP, as a suspended or hung one is. Calls of engines end by their deadlines and the
// engines compute on; a service manager's watchdog ends the stopped kvistd, and engines attach to its successor by themselves.
#include <catch2/catch.hpp>

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/notify_socket.h"

using kvist::test::Campaign;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::NotifySocket;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kDeadlineMicros = 200'000;  // of every call

FakeEngine::Options On(const DaemonProcess& daemon, const std::string& instance) {
  FakeEngine::Options options;
  options.socket = daemon.socket();
  options.instance = instance;
  options.pages = 1024;
  options.segment_bytes = 4096;
  return options;
}

// An engine at work: prompt after prompt it loads what there is, computes the rest, stores it; each call measured. Pages whose load isn't
// over when its deadline has passed are put aside until kvistd or its end gives them back, as a real engine does.
class WorkingEngine {
 public:
  WorkingEngine(const DaemonProcess& daemon, const std::string& instance) : engine_(On(daemon, instance)) {
    REQUIRE(engine_.status.message == "");
    thread_ = std::thread([this] { Work(); });
  }
  ~WorkingEngine() { Finish(); }
  void Finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  uint64_t computed() const { return computed_; }  // prompts
  uint64_t hits() const { return hits_; }          // prompts that were loaded whole, right or wrong
  uint64_t wrong() const { return wrong_; }        // chunks
  double longest_us() const { return static_cast<double>(longest_us_.load()); }
  size_t put_aside() const { return put_aside_; }  // areas of pages

 private:
  static constexpr uint32_t kChunks = 16, kAreas = 16;
  struct Area {
    kvist_op load = 0;  // that isn't over
  };

  template <class Call>
  auto Measured(Call call) {
    const auto begin = Clock::now();
    auto result = call();
    const int64_t took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
    longest_us_ = std::max(longest_us_.load(), took);
    return result;
  }

  void Work() {
    std::mt19937 random(26);
    kvist::Client& worker = engine_.worker(0);
    std::vector<Area> areas(kAreas);
    while (!stop_) {
      size_t aside = 0;
      for (Area& area : areas) {
        if (area.load != 0 && Measured([&] { return worker.Poll(area.load); }).pages_released != 0) area.load = 0;
        aside += area.load != 0;
      }
      put_aside_ = aside;
      const auto free = std::find_if(areas.begin(), areas.end(), [](const Area& area) { return area.load == 0; });
      if (free == areas.end()) std::abort();  // one load at most is under way when kvistd stops
      Prompt(engine_.Keys(1000 * (random() % 20), kChunks), static_cast<uint32_t>(free - areas.begin()), &*free);
    }
    // Pages may be freed only when nothing touches them any more.
    for (const Area& area : areas) {
      while (area.load != 0 && worker.Wait(area.load, kDeadlineMicros).pages_released == 0) {}
    }
  }

  void Prompt(const std::vector<kvist_key>& keys, uint32_t number, Area* area) {
    kvist::Client& worker = engine_.worker(0);
    const std::vector<uint32_t> pages = engine_.Pages(number * kChunks, kChunks);
    const auto of_chunk = [&](uint32_t chunk) {
      return std::span(pages).subspan(size_t{chunk} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
    };
    const kvist::Hit hit = Measured([&] { return engine_.scheduler().Lookup(keys, 10 * kDeadlineMicros, kDeadlineMicros); });
    if (hit.lease && hit.chunks == kChunks) {
      engine_.Poison(0, pages);
      kvist_load_args args{};
      args.struct_size = sizeof args;
      args.lease = hit.lease.id();
      args.chunk_count = kChunks;
      args.pages = pages.data();
      args.page_count = pages.size();
      args.deadline_us = kDeadlineMicros;
      kvist_op load = 0;
      Measured([&] { return kvist_load(worker.get(), &args, &load); });
      if (load != 0) {
        const kvist_result result = Measured([&] { return worker.Wait(load, kDeadlineMicros); });
        if (result.status == KVIST_OK) {
          ++hits_;
          for (uint32_t c = 0; c < kChunks; ++c) wrong_ += !engine_.Check(0, keys[c], of_chunk(c)).empty();
        }
        if (result.pages_released == 0) {  // computed elsewhere
          area->load = load;
          ++computed_;
          return;
        }
      }
    }
    for (uint32_t c = 0; c < kChunks; ++c) engine_.Fill(0, keys[c], of_chunk(c));
    ++computed_;
    kvist_store_args args{};
    args.struct_size = sizeof args;
    args.keys = keys.data();
    args.key_count = keys.size();
    args.pages = pages.data();
    args.page_count = pages.size();
    args.deadline_us = kDeadlineMicros;
    kvist_op store = 0;
    Measured([&] { return kvist_store(worker.get(), &args, &store); });
    if (store == 0) return;
    if (Measured([&] { return worker.Wait(store, kDeadlineMicros); }).status != KVIST_PENDING) return;
    Measured([&] { return worker.Cancel(store).code; });
    worker.Poll(store);
  }

  FakeEngine engine_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> computed_{0}, hits_{0}, wrong_{0};
  std::atomic<int64_t> longest_us_{0};
  std::atomic<size_t> put_aside_{0};
};

// Seconds until the counter has risen by 3; negative when it doesn't within the time.
template <class Counter>
double UntilItGoesOn(Counter counter, std::chrono::seconds within) {
  const auto begin = Clock::now();
  const uint64_t from = counter();
  while (counter() < from + 3) {
    if (Clock::now() - begin > within) return -1;
    std::this_thread::yield();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A stall beyond its deadline is the scheduler's doing on a busy machine; this much would be ours.
constexpr double kStallMost = 3;

}  // namespace

TEST_CASE("Row 26: a kvistd that stands still costs an engine no more than its deadlines, and serves it when it goes on") {
  const auto stopped_for = std::chrono::seconds(Campaign("KVIST_STOP_SECONDS", 2));
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  WorkingEngine engine(daemon, "working");
  REQUIRE(UntilItGoesOn([&] { return engine.hits(); }, std::chrono::seconds(20)) >= 0);
  const uint64_t before = engine.computed();
  const auto stopped = Clock::now();
  daemon.Signal(SIGSTOP);
  // An engine that starts now isn't kept waiting either.
  FakeEngine::Options options = On(daemon, "newcomer");
  options.connect_timeout_us = kDeadlineMicros;
  const auto connecting = Clock::now();
  FakeEngine newcomer(options);
  const double connected_us = std::chrono::duration<double, std::micro>(Clock::now() - connecting).count() / 2;  // sessions
  CHECK(newcomer.status.message == "");
  CHECK(newcomer.scheduler().Lookup(newcomer.Keys(0, 4), 0, kDeadlineMicros).status == KVIST_UNAVAILABLE);
  CHECK(connected_us <= kStallMost * kDeadlineMicros);
  while (Clock::now() - stopped < stopped_for) {
    REQUIRE(UntilItGoesOn([&] { return engine.computed(); }, std::chrono::seconds(20)) >= 0);
  }
  const uint64_t meanwhile = engine.computed() - before;
  const size_t aside = engine.put_aside();
  daemon.Signal(SIGCONT);
  const double served = UntilItGoesOn([&] { return engine.hits(); }, std::chrono::seconds(5));
  CHECK(served >= 0);
  CHECK(newcomer.scheduler().WaitConnected(5'000'000).ok());
  CHECK(newcomer.worker(0).WaitConnected(5'000'000).ok());
  CHECK(Eventually([&] { return engine.put_aside() == 0; }));
  std::string wrong;
  newcomer.StoreAll(newcomer.Keys(0, 16));
  CHECK(newcomer.LoadAll(newcomer.Keys(0, 16), &wrong) == 16);
  CHECK(wrong == "");
  engine.Finish();
  std::printf(
      "row 26: kvistd stopped for %.0f s: longest stall / deadline of %ld ms: %.2f of calls, %.2f of connecting; %lu "
      "prompts computed "
      "meanwhile, %zu loads' pages put aside and given back, served again after %.2f s, wrong chunks %lu\n",
      std::chrono::duration<double>(Clock::now() - stopped).count(), kDeadlineMicros / 1000,
      engine.longest_us() / kDeadlineMicros, connected_us / kDeadlineMicros, meanwhile, aside, served, engine.wrong());
  CHECK(meanwhile > 0);
  CHECK(engine.longest_us() <= kStallMost * kDeadlineMicros);
  CHECK(engine.wrong() == 0);
}

TEST_CASE("Row 26: a watchdog ends a kvistd that stands still, and engines attach to its successor within 5 s") {
  const int stops = Campaign("KVIST_WATCHDOG_STOPS", 2);
  constexpr int kWatchdogMs = 1000;  // what WatchdogSec would be
  TempDir dir;
  const NotifySocket manager(dir.path() + "/notify");
  ::setenv("WATCHDOG_USEC", std::to_string(kWatchdogMs * 1000).c_str(), 1);
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  WorkingEngine one(daemon, "one"), two(daemon, "two");
  double slowest_end = 0, slowest_return = 0;
  for (int stop = 0; stop < stops; ++stop) {
    REQUIRE(UntilItGoesOn([&] { return one.hits(); }, std::chrono::seconds(20)) >= 0);
    for (int pings = 0; pings < 2;) {  // it lives, and says so
      const std::string message = manager.Receive(10 * kWatchdogMs);
      REQUIRE(message != "");
      pings += message == "WATCHDOG=1";
    }
    const auto stopped = Clock::now();
    daemon.Signal(SIGSTOP);
    // What systemd does with Restart=on-watchdog: nothing heard for WatchdogSec, so it is killed and started again.
    while (manager.Receive(kWatchdogMs) != "") REQUIRE(Clock::now() - stopped < std::chrono::seconds(30));
    daemon.Kill();
    slowest_end = std::max(slowest_end, std::chrono::duration<double>(Clock::now() - stopped).count());
    CHECK(UntilItGoesOn([&] { return two.computed(); }, std::chrono::seconds(20)) >= 0);
    daemon.Start();
    const auto started = Clock::now();
    CHECK(UntilItGoesOn([&] { return one.hits(); }, std::chrono::seconds(5)) >= 0);
    CHECK(UntilItGoesOn([&] { return two.hits(); }, std::chrono::seconds(5)) >= 0);
    slowest_return = std::max(slowest_return, std::chrono::duration<double>(Clock::now() - started).count());
  }
  ::unsetenv("WATCHDOG_USEC");
  one.Finish();
  two.Finish();
  const double stall = std::max(one.longest_us(), two.longest_us()) / kDeadlineMicros;
  std::printf(
      "row 26: %d times a watchdog of %d ms ended a stopped kvistd after at most %.2f s; 2 engines served again %.2f s "
      "after its "
      "successor was READY (asked: 5), longest stall / deadline %.2f, wrong chunks %lu\n",
      stops, kWatchdogMs, slowest_end, slowest_return, stall, one.wrong() + two.wrong());
  CHECK(slowest_return <= 5);
  CHECK(stall <= kStallMost);
  CHECK(one.wrong() + two.wrong() == 0);
}
