// Load or recompute, with a real disk: by what an engine reports kvistd tells what isn't worth reading for it.
#include <catch2/catch.hpp>
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
constexpr uint32_t kPrompts = 60;
constexpr uint32_t kReports = 80;  // more than kvistd remembers

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

// What of the prompts [from, to) is loaded, all of it right.
uint32_t Load(FakeEngine& engine, uint32_t from, uint32_t to) {
  uint32_t chunks = 0;
  for (uint32_t p = from; p < to; ++p) {
    std::string wrong;
    chunks += engine.LoadAll(Prompt(engine, p), &wrong);
    CHECK(wrong.empty());
  }
  return chunks;
}

void Report(FakeEngine& engine, int64_t us_per_chunk) {
  for (uint32_t n = 0; n < kReports; ++n) {
    const uint32_t chunks = 1 + n % 4;
    REQUIRE(engine.scheduler()
                .ReportPrefill(n * FakeEngine::kChunkTokens, chunks * FakeEngine::kChunkTokens, chunks * us_per_chunk)
                .ok());
  }
}

}  // namespace

TEST_CASE("What an engine computes sooner than the disk reads it is left to the engine, and only while that is so") {
  const bool gate = GENERATE(true, false);
  INFO("ssd.gate " << gate);
  const TempDir dir;
  // A pool of 10 prompts.
  DaemonProcess daemon(dir.path(), {"ssd.enabled=true", "ssd.capacity=256MiB", "pool.bytes=6MiB", "pool.slab_bytes=1MiB",
                                    "lease.share=0.9", gate ? "ssd.gate=true" : "ssd.gate=false"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  for (uint32_t p = 0; p < kPrompts; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    if (p % 4 == 3) REQUIRE(engine.scheduler().Flush(30'000'000).ok());
  }

  // All is loaded while nothing is known of the engine, and how fast the disk is becomes known.
  CHECK(Load(engine, 0, 15) == 15 * kChunks);
  // Nothing is faster than that.
  Report(engine, 1);
  const uint32_t left = Load(engine, 15, 30);
  CHECK(left <= (gate ? 15 * kChunks / 2 : 15 * kChunks));
  if (!gate) CHECK(left == 15 * kChunks);
  // Nor slower than that.
  Report(engine, 60'000'000);
  CHECK(Load(engine, 30, 45) == 15 * kChunks);
}
