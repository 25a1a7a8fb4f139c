// Pins of a real kvistd: very many, listed page by page and removed by number while no engine waits for that; and those that outlive it.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

using Clock = std::chrono::steady_clock;

// Of two models, because a space has at most 65,536. All keep one chunk each, under names of their own: what else they ask for
// isn't there.
void PinOften(FakeEngine& engine, uint32_t pins) {
  const std::vector<kvist_key> stored = engine.Keys(1, 1);
  REQUIRE(engine.StoreAll(stored).status == KVIST_OK);
  for (uint32_t i = 1; i <= pins; ++i) {
    kvist_key absent{};
    std::memcpy(&absent, &i, sizeof i);
    REQUIRE(engine.scheduler().Pin(std::vector<kvist_key>{stored[0], absent}) == 1);
  }
}

double Micros(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

}  // namespace

TEST_CASE("Every one of very many pins is listed once, and any can be removed, while engines are served") {
  const int pins = kvist::test::Campaign("KVIST_PINS", 24'000, 100'000);  // each model has half
  REQUIRE(pins >= 2);
  TempDir dir;
  // Pins count all their chunks in the budget, shared or not; memory that is never touched costs nothing.
  const DaemonProcess daemon(dir.path(), {"pool.bytes=16GiB", "pool.touch_threads=0", "pool.lock=false", "pin.share=1.0"});
  const auto engine_of = [&](const std::string& model) {
    FakeEngine::Options options;
    options.socket = daemon.socket();
    options.model = options.instance = model;
    return FakeEngine(options);
  };
  FakeEngine red = engine_of("red"), blue = engine_of("blue");
  REQUIRE(red.status.message == "");
  REQUIRE(blue.status.message == "");
  PinOften(red, static_cast<uint32_t>(pins / 2));
  PinOften(blue, static_cast<uint32_t>(pins / 2));

  const auto ctl = [&](std::vector<std::string> arguments, std::string* out) {
    arguments.insert(arguments.begin(), {kvist::test::BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "-o",
                                         "json", "--timeout", "2m"});
    return kvist::test::RunProgram(arguments, out);
  };
  const auto list = [&] {
    std::string out;
    REQUIRE(ctl({"pins"}, &out) == 0);
    return nlohmann::json::parse(out).at("pins");
  };
  // Lookups one after the other, as an engine's scheduler makes them, for as long as the list is made.
  std::vector<double> waits;
  std::atomic<bool> listed{false};
  std::thread lookups([&] {
    const std::vector<kvist_key> key = red.Keys(1, 1);
    do {
      const auto start = Clock::now();
      (void)red.scheduler().Lookup(key, 0);
      waits.push_back(Micros(Clock::now() - start));
    } while (!listed.load());
  });
  const auto start = Clock::now();
  const nlohmann::json all = list();
  const double took = Micros(Clock::now() - start);
  listed.store(true);
  lookups.join();
  std::sort(waits.begin(), waits.end());
  std::printf("%d pins listed in %.0f ms; meanwhile %zu lookups: p50 %.1f us, p99 %.1f us, longest %.0f us\n", pins,
              took / 1e3, waits.size(), waits[waits.size() / 2], waits[waits.size() * 99 / 100], waits.back());

  REQUIRE(all.size() == static_cast<size_t>(pins / 2 * 2));
  for (size_t i = 0; i < all.size(); ++i) {
    REQUIRE(all[i]["id"] == i + 1);  // they were made one after the other
    REQUIRE(all[i]["owner"] == (i < all.size() / 2 ? "red" : "blue"));
    REQUIRE(all[i]["chunks"] == 1);
  }
  std::string out;
  for (const size_t removed : {size_t{1}, all.size() / 2, all.size()}) {
    CHECK(ctl({"pins", "remove", std::to_string(removed)}, &out) == 0);
    CHECK(ctl({"pins", "remove", std::to_string(removed)}, &out) == 1);  // gone
  }
  CHECK(list().size() == all.size() - 3);
  // A clear takes pins at a stroke and ends them in slices; those of the other space are found behind them.
  out.clear();
  REQUIRE(ctl({"status"}, &out) == 0);
  const auto spaces = nlohmann::json::parse(out).at("spaces");
  const auto of_red = std::find_if(spaces.begin(), spaces.end(), [](const auto& space) { return space["model"] == "red"; });
  REQUIRE(of_red != spaces.end());
  CHECK(ctl({"clear", "--yes", "--space", (*of_red)["digest"]}, &out) == 0);
  const nlohmann::json left = list();
  CHECK(left.size() == all.size() / 2 - 1);
  for (const auto& pin : left) REQUIRE(pin["owner"] == "blue");
}

TEST_CASE("An operator looks a prompt up by its tokens, pins it for a while, and finds it through a flood and a clear") {
  TempDir dir;
  const DaemonProcess daemon(dir.path(), {"pool.bytes=4MiB", "ssd.enabled=false"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket(), "engine");
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  constexpr uint32_t kChunks = 4;
  const std::vector<kvist_key> keys = engine.Keys(3000, kChunks);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const std::string file = dir.path() + "/tokens";
  {
    std::ofstream tokens(file);
    for (const uint32_t token : FakeEngine::Tokens(3000, kChunks + 1)) tokens << token << ", ";
  }
  const nlohmann::json found = Ctl(daemon, {"lookup", "--tokens", file})["spaces"];
  REQUIRE(found.size() == 1);
  CHECK(found[0]["chunk_tokens"] == FakeEngine::kChunkTokens);
  CHECK(found[0]["prompt_chunks"] == kChunks + 1);
  CHECK(found[0]["chunks"] == kChunks);
  CHECK(found[0]["dram_tokens"] == kChunks * FakeEngine::kChunkTokens);
  CHECK(found[0]["ssd_tokens"] == 0);
  CHECK(Ctl(daemon, {"lookup", "--tokens", file, "--salt", "another"})["spaces"][0]["chunks"] == 0);

  const nlohmann::json pins = Ctl(daemon, {"pins", "add", "--tokens", file, "--for", "10m"})["pins"];
  REQUIRE(pins.size() == 1);
  CHECK(pins[0]["owner"] == "operator");
  CHECK(pins[0]["chunks"] == kChunks);
  CHECK(pins[0]["seconds_left"] > 500);
  for (uint32_t prompt = 10; prompt < 300; ++prompt) engine.StoreAll(engine.Keys(prompt * 1000, 4));
  CHECK(StatusOf(daemon)["evictions"] > 0);
  CHECK(Ctl(daemon, {"lookup", "--tokens", file})["spaces"][0]["chunks"] == kChunks);
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == kChunks);
  CHECK(wrong == "");

  // One that ends by itself is gone then, and the other one when everything is cleared.
  CHECK(Ctl(daemon, {"pins", "add", "--tokens", file, "--for", "1s", "--owner", "brief"})["pins"].size() == 1);
  CHECK(kvist::test::Eventually([&] { return Ctl(daemon, {"pins"})["pins"].size() == 1; }));
  Ctl(daemon, {"clear", "--yes"});
  CHECK(Ctl(daemon, {"pins"})["pins"].empty());
  CHECK(Ctl(daemon, {"lookup", "--tokens", file})["spaces"][0]["chunks"] == 0);
  CHECK(CtlSays(daemon, {"lookup", "--tokens", file, "--model", "another"}).second.find("no space fits") !=
        std::string::npos);
}

TEST_CASE("What is pinned stays pinned through kill -9: for as long as was said, by whom, and until somebody ends it") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=4MiB", "ssd.enabled=true", "ssd.capacity=64MiB"});
  constexpr uint32_t kChunks = 4;
  const std::string file = dir.path() + "/tokens";
  {
    std::ofstream tokens(file);
    for (const uint32_t token : FakeEngine::Tokens(3000, kChunks)) tokens << token << " ";
  }
  const auto add = [&](const std::string& owner, std::vector<std::string> more = {}) -> uint64_t {
    more.insert(more.begin(), {"pins", "add", "--tokens", file, "--owner", owner});
    return Ctl(daemon, more)["pins"][0]["id"];
  };
  const auto restart = [&] {
    daemon.Kill();
    daemon.Start();
    REQUIRE(kvist::test::HasRecovered(daemon));
    std::map<std::string, nlohmann::json> pins;
    const nlohmann::json listed = Ctl(daemon, {"pins"})["pins"];
    for (const auto& pin : listed) pins[pin["owner"]] = pin;
    return pins;
  };
  {
    FakeEngine engine(FakeEngine::On(daemon.socket(), "engine"));
    REQUIRE(engine.status.ok());
    const std::vector<kvist_key> keys = engine.Keys(3000, kChunks);
    REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(30'000'000, nullptr).ok());
    REQUIRE(engine.scheduler().Pin(keys) == kChunks);
    REQUIRE(engine.scheduler().Pin(keys) == kChunks);
  }
  add("brief", {"--for", "1s"});
  add("bob", {"--for", "10m"});
  REQUIRE(kvist::test::Eventually([&] { return Ctl(daemon, {"pins"})["pins"].size() == 2; }));  // the brief one has ended
  const uint64_t gone = add("gone");
  Ctl(daemon, {"pins", "remove", std::to_string(gone)});
  add("ann");
  auto pins = restart();  // right behind the answer
  REQUIRE(pins.size() == 3);
  for (const auto& [owner, pin] : pins) CHECK(pin["chunks"] == kChunks);
  REQUIRE(pins.contains("engine"));
  CHECK(pins["engine"]["count"] == 2);
  CHECK(pins.at("ann").value("seconds_left", 0.0) == 0);
  CHECK(pins.at("bob")["seconds_left"] > 500);
  CHECK(pins.at("bob")["seconds_left"] < 599);

  FakeEngine engine(FakeEngine::On(daemon.socket(), "engine"));
  REQUIRE(engine.status.ok());
  const std::vector<kvist_key> keys = engine.Keys(3000, kChunks);
  // It stays though the disk's room is written over again and again, and counts down as if nothing had happened.
  REQUIRE(kvist::test::Eventually([&, prompt = 10u]() mutable {
    for (const uint32_t end = prompt + 200; prompt < end; ++prompt) engine.StoreAll(engine.Keys(prompt * 1000, kChunks));
    return Ctl(daemon, {"ssd"})["chunks_reclaimed"] > 1000;
  }));
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == kChunks);
  CHECK(wrong == "");
  REQUIRE(engine.scheduler().Unpin(keys).ok());
  add("ann");  // behind what was unpinned
  pins = restart();
  REQUIRE(pins.contains("engine"));
  CHECK(pins["engine"]["count"] == 1);
  Ctl(daemon, {"clear", "--yes"});
  CHECK(Ctl(daemon, {"pins"})["pins"].empty());
  CHECK(restart().empty());
}
