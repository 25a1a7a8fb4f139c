// Row 6 of the fault matrix: what lies in the pool outlives kvistd, killed at any moment or stopped to be started again, where a service
// manager keeps files for it. A stand-in keeps them here (fd_store.h); nothing is on disk but where a test says so.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fd_store.h"
#include "tests/support/temp_dir.h"

using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::FdStore;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 8;  // of a prompt: 192 KiB

std::vector<std::string> Settings(std::vector<std::string> more = {}) {
  std::vector<std::string> settings{"pool.bytes=16MiB", "pool.slab_bytes=1MiB", "pool.keep=always", "ssd.enabled=false",
                                    "lease.share=0.9"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

void StorePrompts(FakeEngine& engine, uint32_t first, uint32_t count) {
  for (uint32_t p = first; p < first + count; ++p) CHECK(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
}

// Chunks of these prompts that are hits; loaded and checked where `wrong` is given.
uint32_t Hits(FakeEngine& engine, uint32_t prompts, std::string* wrong = nullptr) {
  uint32_t chunks = 0;
  for (uint32_t p = 0; p < prompts; ++p) {
    const std::vector<kvist_key> keys = Prompt(engine, p);
    if (wrong == nullptr) {
      chunks += engine.scheduler().Lookup(keys, 0).chunks;
      continue;
    }
    std::string one;
    chunks += engine.LoadAll(keys, &one);
    if (wrong->empty()) *wrong = one;
  }
  return chunks;
}

}  // namespace

TEST_CASE("Row 6: a full pool outlives kill -9") {
  constexpr uint32_t kPrompts = 100;  // more than the pool holds
  const TempDir dir;
  FdStore store(dir / "");
  DaemonProcess daemon(dir / "", Settings(), "", store.Before());
  uint32_t before = 0;
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    StorePrompts(engine, 0, kPrompts);
    before = Hits(engine, kPrompts);
    CHECK(before > 500);
    CHECK(before < kPrompts * kChunks);
    daemon.Kill();
  }
  CHECK(store.Settle().size() == 2);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  std::string wrong;
  const uint32_t after = Hits(engine, kPrompts, &wrong);
  std::printf("row 6: %u of %u chunks of a full pool kept over kill -9 (%.1f %%)\n", after, before, 100.0 * after / before);
  CHECK(wrong.empty());
  CHECK(after == before);
  CHECK(store.Settle().size() == 2);

  SECTION("and as much of it as is needed makes room") {
    StorePrompts(engine, 500, 20);
    CHECK(Hits(engine, kPrompts) < before);
    Hits(engine, kPrompts, &wrong);
    CHECK(wrong.empty());
  }
  SECTION("and a clean restart") {
    CHECK(daemon.Terminate() == 0);
    store.Settle();
    daemon.Start();
    FakeEngine again(FakeEngine::On(daemon.socket()));
    CHECK(Hits(again, kPrompts, &wrong) == before);
    CHECK(wrong.empty());
  }
  SECTION("and is gone when the service was stopped") {
    CHECK(daemon.Terminate() == 0);
    store.Forget();
    daemon.Start();
    FakeEngine again(FakeEngine::On(daemon.socket()));
    CHECK(Hits(again, kPrompts) == 0);
  }
}

TEST_CASE("Row 6: what was cleared before kill -9 stays away, what another pool would misread is given up") {
  const TempDir dir;
  FdStore store(dir / "");
  std::vector<std::string> settings = Settings();
  {
    DaemonProcess daemon(dir / "", settings, "", store.Before());
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    StorePrompts(engine, 0, 4);
    CtlSays(daemon, {"clear", "--yes"});
    StorePrompts(engine, 4, 2);
    CHECK(Hits(engine, 6) == 2 * kChunks);
  }
  store.Settle();
  {
    DaemonProcess daemon(dir / "", settings, "", store.Before());
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    std::string wrong;
    CHECK(Hits(engine, 6, &wrong) == 2 * kChunks);
    CHECK(wrong.empty());
  }
  store.Settle();
  for (const char* other : {"pool.bytes=20MiB", "pool.slab_bytes=2MiB", "pool.verify=always", "pool.keep=never"}) {
    INFO(other);
    DaemonProcess daemon(dir / "", Settings({other}), "", store.Before());
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    CHECK(Hits(engine, 6) == 0);
    StorePrompts(engine, 4, 2);
    CHECK(store.Settle().size() == (std::string(other) == "pool.keep=never" ? 0 : 2));
  }
}

// Each prompt's second half is stored in one more store, so that kills come between shards of chains, while two engines store, load and
// clear, and evict each other.
TEST_CASE("Row 6: kill -9 at random moments of stores, loads and clears, again and again") {
  const auto cycles = kvist::test::Campaign("KVIST_WARM_KILLS", 12, 300);
  const TempDir dir;
  FdStore store(dir / "");
  DaemonProcess daemon(dir / "", Settings({"ssd.enabled=true", "ssd.capacity=64MiB", "lease.half_store=1s"}), "",
                       store.Before());
  std::mt19937_64 random(2026);
  uint64_t kept = 0, loaded = 0, wrong_chunks = 0;
  std::string wrong;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    {
      std::atomic<bool> stop{false};
      std::vector<std::thread> threads;
      std::atomic<uint64_t> wrong_here{0};
      for (uint32_t e = 0; e < 2; ++e) {
        threads.emplace_back([&, e, seed = random()] {
          std::mt19937_64 mine(seed);
          FakeEngine::Options options = FakeEngine::On(daemon.socket(), "engine-" + std::to_string(e));
          options.ranks = 2;
          options.model = "shared";
          FakeEngine engine(options);
          while (!stop && engine.status.ok()) {
            const std::vector<kvist_key> keys = Prompt(engine, static_cast<uint32_t>(mine() % 120));
            std::string one;
            const uint32_t hit = engine.LoadAll(keys, &one);
            wrong_here += !one.empty();
            if (hit < keys.size()) engine.StoreAll(keys, hit);
          }
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50 + random() % 250));
      if (random() % 4 == 0) CtlSays(daemon, {"clear", "--yes"});
      daemon.Kill();
      stop = true;
      for (std::thread& thread : threads) thread.join();
      wrong_chunks += wrong_here;
    }
    store.Settle();
    daemon.Start();
    FakeEngine::Options options = FakeEngine::On(daemon.socket(), "reader");
    options.ranks = 2;
    options.model = "shared";
    FakeEngine engine(options);
    REQUIRE(engine.status.ok());
    kept += Hits(engine, 120);
    loaded += Hits(engine, 120, &wrong);
    REQUIRE(wrong.empty());
  }
  std::printf("row 6: %d kills, %llu chunks found after them, %llu loaded, %llu wrong\n", cycles,
              static_cast<unsigned long long>(kept), static_cast<unsigned long long>(loaded),
              static_cast<unsigned long long>(wrong_chunks));
  CHECK(wrong_chunks == 0);
  CHECK(kept > 0);
}
