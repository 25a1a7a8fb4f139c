// Rows 1, 2, 30 and 34 of the fault matrix and the death of kvistd, with real processes and real SIGKILL; each prints its figure.
#include <catch2/catch.hpp>

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::FdsFallTo;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using Clock = std::chrono::steady_clock;

namespace {

// What a doomed engine does until it dies: store, look up, load, with leases and half stores open all the time.
int StoreAndLoadForEver(const DaemonProcess& daemon, uint32_t seed) {
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "doomed"));
  if (!engine.status.ok()) return 3;
  std::mt19937 random(seed);
  std::string wrong;
  while (true) {
    const auto keys = engine.Keys(1000 * (random() % 40), 4 + random() % 60);
    engine.StoreAll(keys);
    const kvist::Hit kept = engine.scheduler().Lookup(keys, 60'000'000);
    engine.LoadAll(keys, &wrong);
    if (!wrong.empty()) return 4;
  }
}

}  // namespace

TEST_CASE("Rows 1 and 2: engines killed at random moments of store and load leave nothing behind") {
  const int deaths = Campaign("KVIST_DEATHS", 200, 1000);
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=128MiB"});
  FakeEngine witness(FakeEngine::LargeOn(daemon.socket(), "witness"));
  REQUIRE(witness.status.message == "");
  const auto baseline = StatusOf(daemon);
  const size_t fds = daemon.OpenFds();
  std::mt19937 random(seed);
  std::vector<double> reclaim_ms;
  uint32_t wrong_bytes = 0, hits = 0;
  for (int death = 0; death < deaths; ++death) {
    const uint32_t doom = random();
    ChildProcess engine([&] { return StoreAndLoadForEver(daemon, doom); });
    // The moment of death is what this is about: any time from its connecting to its 20th millisecond.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    const auto died = Clock::now();
    CHECK(engine.Kill() == -SIGKILL);  // 4 would be a wrong byte
    while (true) {
      const auto now = StatusOf(daemon);
      if (now["sessions"] == baseline["sessions"] && AtRest(now)) break;
      REQUIRE(Clock::now() - died < std::chrono::seconds(5));
    }
    reclaim_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - died).count());
    for (int i = 0; i < 2; ++i) {
      std::string wrong;
      hits += witness.LoadAll(witness.Keys(1000 * (random() % 40), 64), &wrong);
      wrong_bytes += !wrong.empty();
      CHECK(wrong == "");
    }
  }
  CHECK(FdsFallTo(daemon, fds));  // connections of the last deaths may be closing yet
  Ctl(daemon, {"clear", "--yes"});
  const uint64_t leaked = StatusOf(daemon)["pool"]["used_bytes"];
  CHECK(leaked == 0);
  std::sort(reclaim_ms.begin(), reclaim_ms.end());
  const double p99 = reclaim_ms[reclaim_ms.size() * 99 / 100];
  std::printf(
      "rows 1, 2: %d deaths, time to reclaim p50 %.1f ms p99 %.1f ms (asked: 1000), leaked %lu bytes, wrong chunks %u of %u "
      "hits\n",
      deaths, reclaim_ms[reclaim_ms.size() / 2], p99, leaked, wrong_bytes, hits);
#ifndef __SANITIZE_THREAD__  // under which the kvistctl that asks takes half a second itself
  CHECK(p99 <= 1000);
#endif
  if (deaths >= 200) CHECK(hits > 0);  // fewer may all come too early, slowed down as sanitizers do
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("kvistd killed under load: the engine finishes by computing and is served again within 5 s") {
  const int kills = Campaign("KVIST_DAEMON_KILLS", 5, 200);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=128MiB"});
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "survivor"));
  REQUIRE(engine.status.message == "");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0}, hits{0}, wrong_chunks{0};
  std::atomic<int64_t> longest_us{0};
  // Every request ends, with kvistd or without: each round is one.
  std::thread load([&] {
    std::mt19937 random(1);
    std::string wrong;
    while (!stop) {
      const auto begin = Clock::now();
      const auto keys = engine.Keys(1000 * (random() % 20), 4 + random() % 60);
      hits += engine.LoadAll(keys, &wrong, 2'000'000);
      wrong_chunks += !wrong.empty();
      engine.StoreAll(keys, 0, 2'000'000);
      const int64_t took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
      longest_us = std::max(longest_us.load(), took);
      ++rounds;
    }
  });
  const auto progresses = [](const std::atomic<uint64_t>& counter, std::chrono::seconds within) {
    return UntilItGoesOn([&] { return counter.load(); }, within);
  };
  double slowest_return = 0;
  for (int kill = 0; kill < kills; ++kill) {
    REQUIRE(progresses(hits, std::chrono::seconds(10)) >= 0);
    daemon.Kill();
    CHECK(progresses(rounds, std::chrono::seconds(10)) >= 0);
    CHECK(engine.scheduler().Lookup(engine.Keys(0, 4), 0).status == KVIST_UNAVAILABLE);
    daemon.Start();
    const double back = progresses(hits, std::chrono::seconds(5));
    CHECK(back >= 0);
    slowest_return = std::max(slowest_return, back);
  }
  stop = true;
  load.join();
  std::printf(
      "kvistd killed %d times under load: %lu requests ended, longest %.0f ms, served again after at most %.2f s (asked: "
      "5), wrong chunks %lu\n",
      kills, rounds.load(), static_cast<double>(longest_us.load()) / 1000, slowest_return, wrong_chunks.load());
  CHECK(wrong_chunks == 0);
}

TEST_CASE("kvistd stopped by SIGSTOP: calls end at their deadlines, and what was stored late is never wrong") {
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
  CHECK(Clock::now() - begin < std::chrono::seconds(3));
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
