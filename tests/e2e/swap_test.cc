// Private allocations, pins and hints with real processes.
#include <catch2/catch.hpp>

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr int64_t kLong = 10'000'000;

uint64_t PrivateBytes(const DaemonProcess& daemon) { return StatusOf(daemon).at("pool").at("private_bytes"); }

// Four chunks' KV of `prompt` in the engine's pages.
std::vector<uint32_t> FillPages(FakeEngine& engine, uint32_t rank, const std::vector<kvist_key>& keys,
                                uint32_t first_chunk) {
  const auto pages = engine.Pages(first_chunk, static_cast<uint32_t>(keys.size()));
  for (size_t c = 0; c < keys.size(); ++c) engine.Fill(rank, keys[c], std::span(pages).subspan(c * 4, 4));
  return pages;
}
std::string CheckPages(const FakeEngine& engine, uint32_t rank, const std::vector<kvist_key>& keys,
                       std::span<const uint32_t> pages) {
  for (size_t c = 0; c < keys.size(); ++c) {
    if (const std::string wrong = engine.Check(rank, keys[c], pages.subspan(c * 4, 4)); !wrong.empty()) return wrong;
  }
  return "";
}
kvist_status Ended(kvist::Client& client, kvist_op op) { return op == 0 ? KVIST_INTERNAL : client.Wait(op, kLong).status; }

}  // namespace

TEST_CASE("KV that was swapped out layer by layer comes back into other pages, on each rank its own") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.ranks = 2;
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 4);
  const kvist::Allocation room = engine.scheduler().Allocate(4);
  REQUIRE(room);
  CHECK(PrivateBytes(daemon) > 0);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    kvist::Client& worker = engine.worker(rank);
    const auto pages = FillPages(engine, rank, keys, 0);
    CHECK(Ended(worker, worker.SwapIn(room, 0, 1, engine.Pages(0, 1))) ==
          KVIST_FAILED_PRECONDITION);  // nothing is there yet
    for (uint32_t layer = 0; layer < 3; ++layer) {
      CHECK(Ended(worker, worker.SwapOut(room, 0, 4, pages, layer, 1)) == KVIST_OK);
    }
    engine.Poison(rank, pages);
    const auto others = engine.Pages(8, 4);
    engine.Poison(rank, others);
    for (const uint32_t layer : {2u, 0u, 1u}) CHECK(Ended(worker, worker.SwapIn(room, 0, 4, others, layer, 1)) == KVIST_OK);
    CHECK(CheckPages(engine, rank, keys, others) == "");
  }
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 0);  // never shared
}

TEST_CASE("In place of pages that weren't taken out zeros come back, never what the slot held before") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=8MiB", "swap.share=0.5"});
  {  // somebody fills the whole pool with bytes of his, and goes
    FakeEngine other(FakeEngine::On(daemon.socket(), "other"));
    REQUIRE(other.status.message == "");
    for (uint32_t prompt = 1; prompt < 60; ++prompt)
      REQUIRE(other.StoreAll(other.Keys(prompt * 1000, 12)).status == KVIST_OK);
  }
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  kvist::Client& worker = engine.worker(0);
  const auto keys = engine.Keys(1, 1);
  const auto pages = FillPages(engine, 0, keys, 0);
  const kvist::Allocation room = worker.Allocate(1);
  REQUIRE(room);
  const std::vector<uint32_t> half = {pages[0], pages[1], KVIST_NO_PAGE, KVIST_NO_PAGE};
  REQUIRE(Ended(worker, worker.SwapOut(room, 0, 1, half)) == KVIST_OK);
  const auto target = engine.Pages(4, 1);
  engine.Poison(0, target);
  REQUIRE(Ended(worker, worker.SwapIn(room, 0, 1, target)) == KVIST_OK);
  for (uint32_t p = 0; p < 4; ++p) {
    for (uint32_t layer = 0; layer < 3; ++layer) {
      for (uint32_t segment = 0; segment < 2; ++segment) {
        const std::byte* got = engine.Segment(0, target[p], layer, segment);
        const std::byte* sent = engine.Segment(0, pages[p], layer, segment);
        if (p < 2) CHECK(std::equal(got, got + 1024, sent));
        if (p >= 2) CHECK(std::all_of(got, got + 1024, [](std::byte b) { return b == std::byte{0}; }));
      }
    }
  }
  // Pages that aren't wanted back are left alone.
  engine.Poison(0, target);
  const std::vector<std::byte> before(engine.Segment(0, target[1], 0, 0), engine.Segment(0, target[1], 0, 0) + 1024);
  REQUIRE(
      Ended(worker, worker.SwapIn(room, 0, 1, std::vector<uint32_t>{target[0], KVIST_NO_PAGE, KVIST_NO_PAGE, target[3]})) ==
      KVIST_OK);
  CHECK(std::equal(before.begin(), before.end(), engine.Segment(0, target[1], 0, 0)));
}

TEST_CASE("Private allocations have a budget, and end with the engine") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=8MiB", "swap.share=0.25"});
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.message == "");
    std::vector<kvist_allocation> rooms;  // never freed: they end with the session
    kvist_allocation room = 0;
    while (rooms.size() < 1000 && kvist_alloc(engine.scheduler().get(), 0, 4, 0, &room) == KVIST_OK) rooms.push_back(room);
    CHECK(std::string(kvist_error()).find("private allocations may take") != std::string::npos);
    const uint64_t used = PrivateBytes(daemon);
    CHECK(used <= (8 << 20) / 4);
    CHECK(used > (8 << 20) / 5);
    REQUIRE_FALSE(rooms.empty());
    CHECK(kvist_free(engine.scheduler().get(), rooms.back()) == KVIST_OK);
    CHECK(Eventually([&] { return PrivateBytes(daemon) < used; }));
    CHECK(engine.scheduler().Allocate(1));
    CHECK_FALSE(engine.scheduler().Allocate(0));
    CHECK_FALSE(engine.scheduler().Allocate(1, 7));
  }
  CHECK(Eventually([&] { return PrivateBytes(daemon) == 0; }));
}

TEST_CASE("What is freed while the ring is full is freed when there is room again") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  kvist::Allocation room = engine.scheduler().Allocate(4);
  REQUIRE(room);
  REQUIRE(PrivateBytes(daemon) > 0);
  daemon.Signal(SIGSTOP);
  const auto keys = engine.Keys(1, 1);
  for (int i = 0; i < 2000; ++i) engine.scheduler().SessionEnded(keys);  // more than the ring holds
  room.Release();
  daemon.Signal(SIGCONT);
  CHECK(Eventually([&] { return PrivateBytes(daemon) == 0; }));
}

TEST_CASE("When kvistd dies what it kept is gone, the engine is told, and goes on with its successor") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  kvist::Client& worker = engine.worker(0);
  const auto keys = engine.Keys(1, 2);
  const auto pages = FillPages(engine, 0, keys, 0);
  const kvist::Allocation room = worker.Allocate(2);
  REQUIRE(Ended(worker, worker.SwapOut(room, 0, 2, pages)) == KVIST_OK);
  daemon.Kill();
  daemon.Start();
  REQUIRE(worker.WaitConnected(kLong).ok());
  // The client may learn of the death only now; then it says so, and is connected again.
  kvist_status ended = KVIST_UNAVAILABLE;
  for (int i = 0; i < 100 && ended == KVIST_UNAVAILABLE; ++i) {
    worker.WaitConnected(kLong);
    const kvist_op op = worker.SwapIn(room, 0, 2, pages);
    ended = op == 0 ? KVIST_UNAVAILABLE : worker.Wait(op, kLong).status;
  }
  CHECK(ended == KVIST_ABORTED);
  const kvist::Allocation again = worker.Allocate(2);
  CHECK(again);
  CHECK(Ended(worker, worker.SwapOut(again, 0, 2, pages)) == KVIST_OK);
}

TEST_CASE("A pinned prompt outlives a flood and its engine; an ended conversation doesn't") {
  TempDir dir;
  // LHD would keep what was hit through the flood.
  DaemonProcess daemon(dir.path(), {"pool.bytes=8MiB", "eviction.policy=lru"});
  const auto flood = [&] {
    FakeEngine other(FakeEngine::On(daemon.socket(), "flood"));
    REQUIRE(other.status.message == "");
    for (uint32_t prompt = 100; prompt < 160; ++prompt)
      REQUIRE(other.StoreAll(other.Keys(prompt * 1000, 12)).status == KVIST_OK);
  };
  std::vector<kvist_key> pinned, plain;
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.message == "");
    pinned = engine.Keys(1, 8), plain = engine.Keys(2000, 8);
    REQUIRE(engine.StoreAll(pinned).status == KVIST_OK);
    REQUIRE(engine.StoreAll(plain).status == KVIST_OK);
    CHECK(engine.scheduler().Pin(pinned) == 8);
  }
  flood();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  std::string wrong;
  CHECK(engine.LoadAll(plain, &wrong) == 0);
  CHECK(engine.LoadAll(pinned, &wrong) == 8);
  CHECK(wrong == "");
  const nlohmann::json pins = Ctl(daemon, {"pins"}).at("pins");
  REQUIRE(pins.size() == 1);
  CHECK(pins[0]["owner"] == "fake");
  CHECK(pins[0]["chunks"] == 8);
  SECTION("the engine takes its pin back") { CHECK(engine.scheduler().Unpin(pinned).ok()); }
  SECTION("an operator removes it") {
    CHECK(CtlSays(daemon, {"pins", "remove", pins[0]["id"].dump()}).first == 0);
    CHECK(CtlSays(daemon, {"pins", "remove", pins[0]["id"].dump()}).first != 0);  // gone
  }
  flood();
  CHECK(engine.LoadAll(pinned, &wrong) == 0);

  // Of two prompts of one age the one whose conversation has ended goes first.
  const auto ended = engine.Keys(3000, 6), alive = engine.Keys(4000, 6);
  REQUIRE(engine.StoreAll(alive).status == KVIST_OK);
  REQUIRE(engine.StoreAll(ended).status == KVIST_OK);
  CHECK(engine.scheduler().SessionEnded(ended, KVIST_STOP_STOP).ok());
  (void)engine.scheduler().Lookup(engine.Keys(6000, 1), 0);  // behind which the hint has been heard
  REQUIRE(engine.StoreAll(engine.Keys(5000, 6)).status == KVIST_OK);
  CHECK(engine.LoadAll(ended, &wrong) == 0);
  CHECK(engine.LoadAll(alive, &wrong) == 6);
  CHECK(wrong == "");
  const kvist_hint_args nonsense{sizeof nonsense, 0, 9, KVIST_STOP_UNKNOWN, 0};
  CHECK(kvist_hint(engine.scheduler().get(), alive.data(), alive.size(), &nonsense) == KVIST_INVALID_ARGUMENT);
}
