// Row 10 of the fault matrix: reads of a disk that fail, under a real kvistd.
#include <stdlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fault_plan.h"
#include "tests/support/recovery.h"
#include "tests/support/shared_file.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FaultPlan;
using kvist::test::HasRecovered;
using kvist::test::SsdOf;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 16;    // of a prompt
constexpr uint32_t kPrompts = 100;  // ten pools

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

// A kvistd_faulty with that many prompts on its disk.
struct FaultyWorld {
  FaultyWorld()
      : plan(kvist::test::SharedFile<FaultPlan>(dir / "plan")), kvistd(dir), engine(FakeEngine::On(kvistd.daemon.socket())) {
    REQUIRE(engine.status.ok());
    REQUIRE(HasRecovered(kvistd.daemon));
    for (uint32_t p = 0; p < kPrompts; ++p) {
      REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
      REQUIRE(engine.scheduler().Flush(30'000'000).ok());
    }
  }
  // Loads them all, the longest in seconds.
  struct Loaded {
    uint32_t chunks = 0;
    double longest = 0;
    std::string wrong;
  };
  Loaded LoadAll() { return LoadAll(&engine); }
  static Loaded LoadAll(FakeEngine* engine) {
    Loaded loaded;
    for (uint32_t p = 0; p < kPrompts; ++p) {
      const auto start = std::chrono::steady_clock::now();
      std::string wrong;
      loaded.chunks += engine->LoadAll(Prompt(*engine, p), &wrong);
      loaded.longest =
          std::max(loaded.longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      if (loaded.wrong.empty()) loaded.wrong = wrong;
    }
    return loaded;
  }
  nlohmann::json ssd() const { return Ctl(kvistd.daemon, {"ssd"}); }

  struct Kvistd {
    explicit Kvistd(const TempDir& dir)
        : environment(dir),
          daemon(dir.path(), {"ssd.enabled=true", "ssd.path=" + (dir / "ssd"), "ssd.capacity=512MiB", "pool.bytes=6MiB",
                              "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=0.9", "log.level=error"}) {}
    struct Environment {
      explicit Environment(const TempDir& dir) {
        ::setenv("KVISTD", (kvist::test::BinDir() + "/kvistd_faulty").c_str(), 1);
        ::setenv("KVIST_FAULT_PLAN", (dir / "plan").c_str(), 1);
      }
      ~Environment() {
        ::unsetenv("KVISTD");
        ::unsetenv("KVIST_FAULT_PLAN");
      }
    } environment;
    DaemonProcess daemon;
  };
  TempDir dir;
  FaultPlan* plan;
  Kvistd kvistd;
  FakeEngine engine;
};

}  // namespace

TEST_CASE("row 10: a read that fails is a miss, counted, and the disk goes on") {
  FaultyWorld world;
  const FaultyWorld::Loaded before = world.LoadAll();
  REQUIRE(before.wrong.empty());
  world.plan->one_in = 200;
  const FaultyWorld::Loaded loaded = world.LoadAll();
  world.plan->one_in = 0;
  CHECK(loaded.wrong.empty());
  const uint64_t injected = world.plan->injected;
  CHECK(injected > 0);
  CHECK(Eventually([&] { return world.ssd()["devices"][0]["read_errors"] == injected; }));
  const nlohmann::json ssd = world.ssd();
  INFO(ssd.dump(1));
  CHECK(ssd["reads_failed"] == injected);
  CHECK(SsdOf(world.kvistd.daemon)["state"] == "on");
  std::printf(
      "row 10: %lu reads failed of one in 200, counted %lu, %u of %u chunks served, wrong chunks 0; longest load %.1f ms, "
      "without faults %.1f\n",
      injected, ssd["reads_failed"].get<uint64_t>(), loaded.chunks, before.chunks, loaded.longest * 1e3,
      before.longest * 1e3);
}

TEST_CASE("row 10: a disk that fails many reads is taken out, and everybody is served without it") {
  FaultyWorld world;
  world.plan->one_in = 8;
  const FaultyWorld::Loaded loaded = world.LoadAll();
  CHECK(loaded.wrong.empty());
  const uint64_t injected = world.plan->injected;
  const nlohmann::json status = SsdOf(world.kvistd.daemon);
  INFO(status.dump(1));
  CHECK(injected >= 8);
  CHECK(injected <= 64);  // nobody asks it any more
  CHECK(status["state"] == "read-only");
  CHECK(status["trouble"].get<std::string>().find("reading from ") != std::string::npos);
  // DRAM goes on.
  REQUIRE(world.engine.StoreAll(Prompt(world.engine, 200)).status == KVIST_OK);
  std::string wrong;
  CHECK(world.engine.LoadAll(Prompt(world.engine, 200), &wrong) == kChunks);
  CHECK(wrong.empty());
  CHECK_FALSE(world.engine.scheduler().Flush(5'000'000).ok());
  CHECK(world.plan->injected == injected);
  std::printf("row 10: one read in 8 fails: the disk is taken out after %lu, %u of %u chunks served, wrong chunks 0\n",
              injected, loaded.chunks, kPrompts * kChunks);
  // Its cable is put back.
  world.plan->one_in = 0;
  world.kvistd.daemon.Kill();
  world.kvistd.daemon.Start();
  REQUIRE(HasRecovered(world.kvistd.daemon));
  FakeEngine engine(FakeEngine::On(world.kvistd.daemon.socket()));
  REQUIRE(engine.status.ok());
  const FaultyWorld::Loaded again = FaultyWorld::LoadAll(&engine);
  CHECK(again.wrong.empty());
  CHECK(again.chunks == kPrompts * kChunks);
}
