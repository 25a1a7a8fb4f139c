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
#include <span>
#include <string>
#include <thread>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/notify_socket.h"
#include "tests/support/schedulers_lateness.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

using kvist::test::Campaign;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::NotifySocket;
using kvist::test::SchedulersLateness;
using kvist::test::StallMost;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using kvist::test::WorkingEngine;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kDeadlineMicros = WorkingEngine::kDeadlineMicros;

}  // namespace

TEST_CASE("Row 26: a kvistd that stands still costs an engine no more than its deadlines, and serves it when it goes on") {
  const SchedulersLateness scheduler;
  const auto stopped_for = std::chrono::seconds(Campaign("KVIST_STOP_SECONDS", 2, 60));
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  WorkingEngine engine(daemon.socket(), "working");
  REQUIRE(engine.status().message == "");
  REQUIRE(UntilItGoesOn([&] { return engine.hits(); }, std::chrono::seconds(20)) >= 0);
  const uint64_t before = engine.computed();
  const auto stopped = Clock::now();
  daemon.Signal(SIGSTOP);
  // An engine that starts now isn't kept waiting either.
  FakeEngine::Options options = FakeEngine::LargeOn(daemon.socket(), "newcomer");
  options.connect_timeout_us = kDeadlineMicros;
  const auto connecting = Clock::now();
  FakeEngine newcomer(options);
  const double connected_us = std::chrono::duration<double, std::micro>(Clock::now() - connecting).count() / 2;  // sessions
  CHECK(newcomer.status.message == "");
  CHECK(newcomer.scheduler().Lookup(newcomer.Keys(0, 4), 0, kDeadlineMicros).status == KVIST_UNAVAILABLE);
  CHECK(connected_us <= StallMost(scheduler));
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
      "row 26: kvistd stopped for %.0f s: longest stall / deadline of %ld ms: %.2f of calls, %.2f of connecting (asked: 1, "
      "and what the scheduler adds: at most %.2f); %lu "
      "prompts computed "
      "meanwhile, %zu loads' pages put aside and given back, served again after %.2f s, wrong chunks %lu\n",
      std::chrono::duration<double>(Clock::now() - stopped).count(), kDeadlineMicros / 1000,
      engine.longest_us() / kDeadlineMicros, connected_us / kDeadlineMicros, StallMost(scheduler) / kDeadlineMicros,
      meanwhile, aside, served, engine.wrong());
  CHECK(meanwhile > 0);
  CHECK(engine.longest_us() <= StallMost(scheduler));
  CHECK(engine.wrong() == 0);
}

TEST_CASE("Row 26: a watchdog ends a kvistd that stands still, and engines attach to its successor within 5 s") {
  const SchedulersLateness scheduler;
  const int stops = Campaign("KVIST_WATCHDOG_STOPS", 2, 20);
  constexpr int kWatchdogMs = 1000;  // what WatchdogSec would be
  TempDir dir;
  const NotifySocket manager(dir.path() + "/notify");
  ::setenv("WATCHDOG_USEC", std::to_string(kWatchdogMs * 1000).c_str(), 1);
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  WorkingEngine one(daemon.socket(), "one"), two(daemon.socket(), "two");
  REQUIRE(one.status().message + two.status().message == "");
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
  const double stall_us = std::max(one.longest_us(), two.longest_us());
  std::printf(
      "row 26: %d times a watchdog of %d ms ended a stopped kvistd after at most %.2f s; 2 engines served again %.2f s "
      "after its "
      "successor was READY (asked: 5), longest stall / deadline %.2f (at most %.2f), wrong chunks %lu\n",
      stops, kWatchdogMs, slowest_end, slowest_return, stall_us / kDeadlineMicros, StallMost(scheduler) / kDeadlineMicros,
      one.wrong() + two.wrong());
  CHECK(slowest_return <= 5);
  CHECK(stall_us <= StallMost(scheduler));
  CHECK(one.wrong() + two.wrong() == 0);
}

TEST_CASE("Row 26: calls to a stopped kvistd end at their deadlines, and what was stored late is never wrong") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=128MiB"});
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "patient"));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 16);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  kvist::Hit hit = engine.scheduler().Lookup(keys, 30'000'000);
  REQUIRE(hit.chunks == 16);
  daemon.Signal(SIGSTOP);
  const auto begin = Clock::now();
  CHECK(engine.scheduler().Lookup(keys, 0, 100'000).status == KVIST_DEADLINE_EXCEEDED);
  const auto pages = engine.Pages(0, 16);
  const auto late = engine.Keys(2000, 16);
  for (uint32_t c = 0; c < 16; ++c) engine.Fill(0, late[c], std::span(pages).subspan(c * 4, 4));
  const kvist_op store = engine.worker(0).Store(late, 0, pages);
  REQUIRE(store != 0);
  REQUIRE(engine.worker(0).Cancel(store).ok());
  CHECK(engine.worker(0).Poll(store).pages_released == 1);
  engine.Poison(0, pages);
  kvist_load_args args{};
  args.struct_size = sizeof args;
  args.lease = hit.lease.id();
  args.chunk_count = 16;
  args.pages = pages.data();
  args.page_count = pages.size();
  args.deadline_us = 100'000;
  kvist_op load = 0;
  REQUIRE(kvist_load(engine.worker(0).get(), &args, &load) == KVIST_OK);
  kvist_result result = engine.worker(0).Wait(load, 1'000'000);
  CHECK(result.status == KVIST_DEADLINE_EXCEEDED);
  CHECK(result.pages_released == 0);  // kvistd may copy yet when it goes on
  CHECK(Clock::now() - begin < std::chrono::seconds(15));
  daemon.Signal(SIGCONT);
  while (result.pages_released == 0) {
    result = engine.worker(0).Wait(load, 1'000'000);
    REQUIRE(Clock::now() - begin < std::chrono::seconds(20));
  }
  std::string wrong;
  engine.LoadAll(late, &wrong);
  CHECK(wrong == "");
  CHECK(engine.LoadAll(keys, &wrong) == 16);
  CHECK(wrong == "");
}
