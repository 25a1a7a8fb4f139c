// Row 39 of the fault matrix: an operator clears, all or a space, again and again, while 40 threads of several engines look up, load,
// store and release the same prompts. No load brings a wrong byte, and nothing leaks.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/engine_plays.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::kPlays;
using kvist::test::Player;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t kEngines = 4, kThreads = 40;

}  // namespace

TEST_CASE("Row 39: clears race with lookups, loads, stores, releases, pins and swaps of 40 threads") {
  const auto time = std::chrono::seconds(Campaign("KVIST_CLEAR_SECONDS", 4, 60));
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  std::vector<std::unique_ptr<FakeEngine>> engines;
  for (uint32_t e = 0; e < kEngines; ++e) {
    FakeEngine::Options options = FakeEngine::LargeOn(daemon.socket(), "engine " + std::to_string(e));
    options.model = e < 2 ? "a" : "b";  // the same keys in two spaces, with other bytes
    engines.push_back(std::make_unique<FakeEngine>(options));
    REQUIRE(engines.back()->status.message == "");
  }
  for (const auto& engine : engines)
    REQUIRE(engine->StoreAll(engine->Keys(0, 1)).status == KVIST_OK);  // empty spaces aren't listed
  std::vector<std::string> spaces;
  const auto status_before = StatusOf(daemon);
  for (const auto& space : status_before["spaces"]) spaces.push_back(space["digest"]);
  REQUIRE(spaces.size() == 2);

  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, kPlays.size()> played{};
  std::atomic<uint64_t> hits{0}, wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Player player{*engines[t % kEngines], t / kEngines * Player::kPlayedChunks, std::mt19937(seed + t)};
      while (!stop) {
        const size_t which = player.random() % kPlays.size();
        kPlays[which].play(player);
        ++played[which];
      }
      hits += player.hits;
      wrong += player.wrong;
    });
  }
  const auto begin = Clock::now();
  uint32_t all = 0, by_space = 0;
  uint64_t cleared = 0;
  while (Clock::now() - begin < time) {
    cleared += Ctl(daemon, {"clear", "--yes"})["chunks"].get<uint64_t>();
    ++all;
    cleared += Ctl(daemon, {"clear", "--yes", "--space", spaces[all % 2]})["chunks"].get<uint64_t>();
    ++by_space;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::string ops;
  for (size_t i = 0; i < kPlays.size(); ++i) {
    ops += std::to_string(played[i]) + " " + kPlays[i].name + ", ";
    CHECK(played[i] > 0);
  }
  std::printf(
      "row 39: %u threads in %u engines: %sbeside %u clears of all and %u of a space (%lu chunks); wrong prompts %lu of %lu "
      "chunks loaded\n",
      kThreads, kEngines, ops.c_str(), all, by_space, cleared, wrong.load(), hits.load());
  CHECK(wrong == 0);
  CHECK(hits > 0);
  CHECK(cleared > 0);
  CHECK(Eventually([&] {
    Ctl(daemon, {"clear", "--yes"});
    const auto status = StatusOf(daemon);
    return AtRest(status) && status["pool"]["used_bytes"] == 0;
  }));
  engines.clear();
  CHECK(daemon.Terminate() == 0);
}
