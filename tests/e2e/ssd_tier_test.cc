// The tier below DRAM, with a real kvistd on a real directory: what it is for, and what a kill -9 must not take.
#include <catch2/catch.hpp>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 16;  // of a prompt
constexpr int64_t kFlushTime = 30'000'000;

// A pool of 10 prompts; a disk of some 700.
std::vector<std::string> Settings() {
  return {"ssd.enabled=true",     "ssd.capacity=512MiB",  "pool.bytes=6MiB",
          "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=0.9"};
}

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

struct Loaded {
  uint32_t chunks = 0;
  std::string wrong;
};
Loaded LoadAll(FakeEngine& engine, uint32_t prompts) {
  Loaded loaded;
  for (uint32_t p = 0; p < prompts; ++p) {
    std::string wrong;
    loaded.chunks += engine.LoadAll(Prompt(engine, p), &wrong);
    if (loaded.wrong.empty()) loaded.wrong = wrong;
  }
  return loaded;
}

uint32_t Found(FakeEngine& engine, uint32_t prompts) {
  uint32_t chunks = 0;
  for (uint32_t p = 0; p < prompts; ++p) chunks += engine.scheduler().Lookup(Prompt(engine, p), 0).chunks;
  return chunks;
}

}  // namespace

TEST_CASE("What was flushed is loaded bit for bit after kill -9") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  constexpr uint32_t kPrompts = 8;
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    for (uint32_t p = 0; p < kPrompts; ++p) REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    uint32_t durable = 0;
    const kvist::Status flushed = engine.scheduler().Flush(kFlushTime, &durable);
    INFO(flushed.message);
    REQUIRE(flushed.ok());
    CHECK(durable >= kPrompts * kChunks);
  }
  daemon.Kill();
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  CHECK(Found(engine, kPrompts) == kPrompts * kChunks);
  const Loaded loaded = LoadAll(engine, kPrompts);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == kPrompts * kChunks);
}

TEST_CASE("A clean stop writes what isn't on disk yet") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    REQUIRE(engine.StoreAll(Prompt(engine, 0)).status == KVIST_OK);
  }
  REQUIRE(daemon.Terminate() == 0);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded loaded = LoadAll(engine, 1);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == kChunks);
}

TEST_CASE("A disk holds what the pool has no room for") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  constexpr uint32_t kPrompts = 100;  // ten times the pool
  for (uint32_t p = 0; p < kPrompts; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    if (p % 4 == 3) REQUIRE(engine.scheduler().Flush(kFlushTime).ok());  // not faster than the disk
  }
  const uint32_t found = Found(engine, kPrompts);
  const Loaded loaded = LoadAll(engine, kPrompts);
  std::printf("ssd: of %u chunks stored, ten pools, %u are found and %u loaded right\n", kPrompts * kChunks, found,
              loaded.chunks);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks >= kPrompts * kChunks * 95 / 100);
}

TEST_CASE("What was cleared is not found again after kill -9, what came later is") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    for (uint32_t p = 0; p < 4; ++p) REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
    std::string out;
    REQUIRE(kvist::test::RunProgram(
                {kvist::test::BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "clear", "--yes"}, &out) == 0);
    REQUIRE(engine.StoreAll(Prompt(engine, 5)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
  }
  daemon.Kill();
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded kept = LoadAll(engine, 6);
  CHECK(kept.wrong.empty());
  CHECK(kept.chunks == kChunks);
}
