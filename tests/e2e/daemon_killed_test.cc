// kvistd killed under load, with real SIGKILL: engines finish by computing and are served again; what its predecessor gave is nothing to the next.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/support/campaign.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/sanitizers.h"
#include "tests/support/schedulers_lateness.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

using kvist::test::Campaign;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::kSanitized;
using kvist::test::SchedulersLateness;
using kvist::test::StallMost;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using kvist::test::WorkingEngine;

TEST_CASE("kvistd killed under load: the engine finishes by computing and is served again within 5 s") {
  const SchedulersLateness scheduler;
  const int kills = Campaign("KVIST_DAEMON_KILLS", 5, 200);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=128MiB"});
  WorkingEngine engine(daemon.socket(), "survivor");
  REQUIRE(engine.status().message == "");
  FakeEngine idle(FakeEngine::On(daemon.socket(), "idle"));
  REQUIRE(idle.status.message == "");
  double slowest_return = 0;
  for (int kill = 0; kill < kills; ++kill) {
    REQUIRE(UntilItGoesOn([&] { return engine.hits(); }, std::chrono::seconds(10)) >= 0);
    daemon.Kill();
    CHECK(UntilItGoesOn([&] { return engine.computed(); }, std::chrono::seconds(10)) >= 0);
    CHECK(idle.scheduler().Lookup(idle.Keys(0, 4), 0).status == KVIST_UNAVAILABLE);
    daemon.Start();
    const double back = UntilItGoesOn([&] { return engine.hits(); }, std::chrono::seconds(5));
    CHECK(back >= 0);
    slowest_return = std::max(slowest_return, back);
  }
  engine.Finish();
  std::printf(
      "kvistd killed %d times under load: %lu prompts computed, %zu calls never ended, longest call / deadline of %ld ms: "
      "%.2f (asked: 1, and what the scheduler adds: at most %.2f), served again after at most %.2f s (asked: 5), wrong "
      "chunks %lu\n",
      kills, engine.computed(), engine.never_ended(), WorkingEngine::kDeadlineMicros / 1000,
      engine.longest_us() / WorkingEngine::kDeadlineMicros, StallMost(scheduler) / WorkingEngine::kDeadlineMicros,
      slowest_return, engine.wrong());
  CHECK(engine.never_ended() == 0);
  if (!kSanitized) CHECK(engine.longest_us() <= StallMost(scheduler));
  CHECK(engine.wrong() == 0);
}

TEST_CASE("A lease of an earlier kvistd is nothing to its successor") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "engine"));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const kvist::Hit before = engine.scheduler().Lookup(keys, 30'000'000);
  REQUIRE(before.chunks == 8);
  daemon.Kill();
  daemon.Start();
  REQUIRE(engine.scheduler().WaitConnected(5'000'000).ok());
  REQUIRE(engine.worker(0).WaitConnected(5'000'000).ok());
  // The same instance gets a lease for other chunks: the successor's first, as the old one was its predecessor's first.
  const auto other = engine.Keys(77'000, 8);
  REQUIRE(engine.StoreAll(other).status == KVIST_OK);
  const kvist::Hit after = engine.scheduler().Lookup(other, 30'000'000);
  REQUIRE(after.chunks == 8);
  CHECK(before.lease.id() != after.lease.id());
  const auto pages = engine.Pages(0, 8);
  const kvist_op op = engine.worker(0).Load(before.lease, 0, 8, pages);
  REQUIRE(op != 0);
  CHECK(engine.worker(0).Wait(op, 5'000'000).status == KVIST_ABORTED);
}
