// Slots of another size in a full pool: slabs are emptied by moving what lies in them, under engines that read it, and under kill -9.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fd_store.h"
#include "tests/support/free_port.h"
#include "tests/support/http_get.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::FdStore;
using kvist::test::FreePort;
using kvist::test::Metric;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 8;  // of a prompt
constexpr uint32_t kPrompts = 160;

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

// Chunks that were right; what was wrong first.
uint32_t LoadPrompts(FakeEngine& engine, uint32_t prompts, std::string* wrong, uint32_t pages_from = 0) {
  uint32_t chunks = 0;
  for (uint32_t p = 0; p < prompts && wrong->empty(); ++p)
    chunks += engine.LoadAll(Prompt(engine, p), wrong, 10'000'000, pages_from);
  return chunks;
}

}  // namespace

TEST_CASE("An engine with other slots gets room in a full pool, and nobody reads a wrong byte meanwhile") {
  const TempDir dir;
  FdStore store(dir / "");
  const uint16_t port = FreePort();
  const std::string ssd = GENERATE("ssd.enabled=false", "ssd.enabled=true");
  DaemonProcess daemon(dir / "",
                       {"pool.bytes=16MiB", "pool.slab_bytes=1MiB", "pool.keep=always", "ssd.capacity=256MiB", ssd,
                        "lease.share=0.9", "metrics.listen=127.0.0.1:" + std::to_string(port)},
                       "", store.Before());
  uint32_t small_after = 0, large_after = 0;
  {
    FakeEngine small(FakeEngine::On(daemon.socket(), "small"));
    REQUIRE(small.status.ok());
    // After a while what belongs together lies in many slabs, and each slab has something of value.
    std::mt19937 random{1};
    for (uint32_t turn = 0; turn < 4 * kPrompts; ++turn) {
      const std::vector<kvist_key> keys = Prompt(small, random() % 2 == 0 ? random() % kPrompts : random() % (kPrompts / 4));
      if (small.scheduler().Lookup(keys, 0).chunks < kChunks) REQUIRE(small.StoreAll(keys).status == KVIST_OK);
    }
    FakeEngine::Options options = FakeEngine::On(daemon.socket(), "large");
    options.model = "large-model";
    options.segment_bytes = 4096;
    FakeEngine large(options);
    REQUIRE(large.status.ok());
    std::atomic<bool> over{false};
    std::string wrong_under_moves;
    std::thread reader([&] {
      while (!over) LoadPrompts(small, kPrompts, &wrong_under_moves, kChunks);
    });
    // What is refused meanwhile asks for room; how soon there is some is up to the machine, and to a disk that still reads the slots.
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    uint32_t stored = 0;
    const auto has_room = [&] { return stored > 0 && Metric(port, "kvist_slabs_emptied_total") > 0; };
    for (uint32_t round = 0; round < 4 || (!has_room() && std::chrono::steady_clock::now() < latest); ++round) {
      for (uint32_t p = 0; p < 20; ++p) stored += large.StoreAll(Prompt(large, p)).chunks_copied;
    }
    over = true;
    reader.join();
    CHECK(wrong_under_moves == "");
    std::string wrong;
    small_after = LoadPrompts(small, kPrompts, &wrong);
    large_after = LoadPrompts(large, 20, &wrong);
    CHECK(wrong == "");
    CHECK(large_after > 0);
    std::printf("emptied slabs: %.0f, for which %.0f slots were moved; %u chunks of 96 KiB stored, %u kept of 24 KiB\n",
                Metric(port, "kvist_slabs_emptied_total"), Metric(port, "kvist_slots_moved_total"), stored,
                small_after);  // the fewer, the less the reader came to run
    CHECK(Metric(port, "kvist_slabs_emptied_total") > 0);
    CHECK(Metric(port, "kvist_slots_moved_total") > 0);
    daemon.Kill();
  }
  if (ssd == "ssd.enabled=true") return;
  store.Settle();
  daemon.Start();
  FakeEngine small(FakeEngine::On(daemon.socket(), "small"));
  FakeEngine::Options options = FakeEngine::On(daemon.socket(), "large");
  options.model = "large-model";
  options.segment_bytes = 4096;
  FakeEngine large(options);
  std::string wrong;
  CHECK(LoadPrompts(small, kPrompts, &wrong) == small_after);
  CHECK(LoadPrompts(large, 20, &wrong) == large_after);
  CHECK(wrong == "");
}
