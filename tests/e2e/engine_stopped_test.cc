// Row 3 of the fault matrix: engines stopped by SIGSTOP while they hold a lease, or are halfway through a store. What they held ends by
// the clock; what they ask for afterwards on the strength of it is refused.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/unique_fd.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::UniqueFd;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kLeaseMicros = 200'000;
constexpr uint32_t kChunks = 16;

// An engine in a process of its own, and a pipe each way: it can be stopped, and says how far it is.
class EngineProcess {
 public:
  struct Channel {
    UniqueFd hear, say;
    template <class T>
    void Say(const T& value) const {
      if (::write(say.get(), &value, sizeof value) != sizeof value) ::_exit(5);  // the test is gone
    }
    // Whether the test has said "go on".
    bool Told() const {
      pollfd readable{hear.get(), POLLIN, 0};
      char c;
      return ::poll(&readable, 1, 0) == 1 && ::read(hear.get(), &c, 1) == 1;
    }
    void WaitTold() const {
      char c;
      if (::read(hear.get(), &c, 1) != 1) ::_exit(5);
    }
  };

  explicit EngineProcess(const std::function<void(const Channel&)>& run) {
    int to[2], from[2];
    REQUIRE(::pipe2(to, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(from, O_CLOEXEC) == 0);
    const Channel engines{UniqueFd(to[0]), UniqueFd(from[1])};
    tests_ = {UniqueFd(from[0]), UniqueFd(to[1])};
    process_.emplace([&] {
      tests_ = {};
      run(engines);
      return 0;
    });
  }

  template <class T>
  T Hear() const {
    pollfd readable{tests_.hear.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, 20'000) == 1);
    T value{};
    REQUIRE(::read(tests_.hear.get(), &value, sizeof value) == sizeof value);
    return value;
  }
  void GoOn() const { REQUIRE(::write(tests_.say.get(), "g", 1) == 1); }
  void Stop() const { process_->Signal(SIGSTOP); }
  void Continue() const { process_->Signal(SIGCONT); }

 private:
  Channel tests_;
  std::optional<ChildProcess> process_;
};

struct Loads {
  uint32_t late = 0;     // submitted after the lease had ended, for sure
  uint32_t aborted = 0;  // of them
  uint32_t in_time = 0;  // those before; some are answered late
  uint32_t wrong = 0;    // wrong bytes, or bytes in pages of a load that was refused
};

// One load with that lease. Counts it as late when `late`.
void LoadOnce(FakeEngine& engine, const kvist::Lease& lease, const std::vector<kvist_key>& keys, bool late, Loads* loads) {
  const std::vector<uint32_t> pages = engine.Pages(0, kChunks);
  engine.Poison(0, pages);
  kvist_result result{};
  const kvist_op op = engine.worker(0).Load(lease, 0, kChunks, pages);
  if (op == 0) ::_exit(6);
  do { result = engine.worker(0).Wait(op, 1'000'000); } while (result.pages_released == 0);
  ++(late ? loads->late : loads->in_time);
  if (late && result.status == KVIST_ABORTED) ++loads->aborted;
  for (uint32_t c = 0; c < kChunks; ++c) {
    const auto of_chunk = std::span(pages).subspan(size_t{c} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
    if (result.status == KVIST_OK) {
      loads->wrong += !engine.Check(0, keys[c], of_chunk).empty();
    } else if (late) {
      loads->wrong += *engine.Segment(0, of_chunk[0], 0, 0) != std::byte{0xee};
    }
  }
}

// Stores, takes a lease, says since when, and loads with it until it was told that the lease has ended; then some times more.
void LeaseAndLoad(const DaemonProcess& daemon, const EngineProcess::Channel& test) {
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "stopped"));
  if (!engine.status.ok()) ::_exit(3);
  for (uint32_t round = 0;; ++round) {
    const auto keys = engine.Keys(1000 * round, kChunks);
    if (engine.StoreAll(keys).status != KVIST_OK) ::_exit(3);
    const auto asked = Clock::now();
    const kvist::Hit hit = engine.scheduler().Lookup(keys, kLeaseMicros);
    if (hit.chunks != kChunks || !hit.lease) ::_exit(4);
    test.Say(asked);
    Loads loads;
    bool told = false;
    while (loads.late < 8) {
      told = told || test.Told();
      LoadOnce(engine, hit.lease, keys, told, &loads);
    }
    test.Say(loads);
  }
}

}  // namespace

TEST_CASE("Row 3: an engine stopped with a lease loses it by the clock, and every load that comes later is refused") {
  const int stops = Campaign("KVIST_ENGINE_STOPS", 8, 100);
  const auto stopped_for = std::chrono::seconds(
      Campaign("KVIST_STOP_SECONDS", 0, 60));  // the first one, at least; the others until the lease has ended
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=32MiB"});
  FakeEngine witness(FakeEngine::LargeOn(daemon.socket(), "witness"));
  REQUIRE(witness.status.message == "");
  const EngineProcess engine([&](const EngineProcess::Channel& test) { LeaseAndLoad(daemon, test); });
  Loads all;
  double slowest_end_ms = 0;
  uint32_t evicted = 0, cleared = 0;
  for (int stop = 0; stop < stops; ++stop) {
    const auto leased = engine.Hear<Clock::time_point>();  // or a moment later
    // At any moment of a load: that is what this is about.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    engine.Stop();
    const auto held = witness.Keys(1000 * static_cast<uint32_t>(stop), kChunks);
    CHECK(witness.scheduler().Lookup(held, 0).chunks == kChunks);
    REQUIRE(Eventually([&] { return StatusOf(daemon)["leases"] == 0; }));
    slowest_end_ms = std::max(slowest_end_ms, std::chrono::duration<double, std::milli>(Clock::now() - leased).count());
    CHECK(Clock::now() - leased >= std::chrono::microseconds(kLeaseMicros));
    // Nothing keeps its chunks now: others push them out, or the operator clears them; and their slots serve others.
    if (stop % 2 == 0) {
      CHECK(Ctl(daemon, {"clear", "--yes"})["chunks"] >= kChunks);
      ++cleared;
    }
    // More than the pool between two looks, which count as uses.
    REQUIRE(Eventually([&] {
      for (int i = 0; i < 8; ++i) witness.StoreAll(witness.Keys(1'000'000 + 1000 * (random() % 100'000), 64));
      return witness.scheduler().Lookup(held, 0).chunks == 0;
    }));
    evicted += stop % 2;
    if (stop == 0) std::this_thread::sleep_until(leased + stopped_for);
    engine.GoOn();  // heard before the first load after this
    engine.Continue();
    const auto loads = engine.Hear<Loads>();
    all.late += loads.late;
    all.aborted += loads.aborted;
    all.in_time += loads.in_time;
    all.wrong += loads.wrong;
  }
  std::printf(
      "row 3: %d engines stopped with a lease of %ld ms, which ended within %.0f ms (chunks then cleared %u, evicted %u "
      "times); late "
      "submissions refused %u of %u, wrong chunks %u of %u loads before\n",
      stops, kLeaseMicros / 1000, slowest_end_ms, cleared, evicted, all.aborted, all.late, all.wrong, all.in_time);
  CHECK(all.late == 8u * static_cast<uint32_t>(stops));
  CHECK(all.aborted == all.late);
  CHECK(all.wrong == 0);
  CHECK(all.in_time > 0);
}

TEST_CASE(
    "Row 3: a half store of an engine that was stopped expires, and the other half that comes late publishes nothing") {
  const int stops = Campaign("KVIST_ENGINE_STOPS", 8, 100) / 2;
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "lease.half_store=1s"});
  FakeEngine::Options options = FakeEngine::LargeOn(daemon.socket(), "witness");
  options.ranks = 2;
  FakeEngine witness(options);
  REQUIRE(witness.status.message == "");
  options.instance = "stopped";
  const EngineProcess engine([&](const EngineProcess::Channel& test) {
    FakeEngine half(options);
    if (!half.status.ok()) ::_exit(3);
    const std::vector<uint32_t> pages = half.Pages(0, kChunks);
    const auto store = [&](uint32_t rank, const std::vector<kvist_key>& keys) {
      for (uint32_t c = 0; c < kChunks; ++c)
        half.Fill(rank, keys[c],
                  std::span(pages).subspan(size_t{c} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk));
      return half.worker(rank).Wait(half.worker(rank).Store(keys, 0, pages), 10'000'000);
    };
    for (uint32_t round = 0;; ++round) {
      const auto keys = half.Keys(1000 * round, kChunks);
      while (store(0, keys).chunks_copied != kChunks) {}  // a part of it may expire before the rest is there
      test.Say('H');
      test.WaitTold();  // and here it is stopped
      test.Say(store(1, keys));
      test.WaitTold();
      kvist_status whole;
      do {
        whole = half.StoreAll(keys).status;
      } while (whole == KVIST_OK && half.scheduler().Lookup(keys, 0).chunks < kChunks);
      test.Say(whole);
      test.WaitTold();
    }
  });
  uint32_t published = 0;
  for (int stop = 0; stop < stops; ++stop) {
    const auto keys = witness.Keys(1000 * static_cast<uint32_t>(stop), kChunks);
    REQUIRE(engine.Hear<char>() == 'H');
    engine.Stop();
    const auto nothing_is_held = [&] {
      const auto status = StatusOf(daemon);
      return status["filling"] == 0 && status["pool"]["used_bytes"] == 0;
    };
    REQUIRE(Eventually(nothing_is_held));
    published += witness.scheduler().Lookup(keys, 0).chunks;
    engine.GoOn();
    engine.Continue();
    // To kvistd it is the first half of a new store: it is taken, and expires like the one before.
    CHECK(engine.Hear<kvist_result>().status == KVIST_OK);
    published += witness.scheduler().Lookup(keys, 0).chunks;
    REQUIRE(Eventually(nothing_is_held));
    published += witness.scheduler().Lookup(keys, 0).chunks;
    engine.GoOn();
    CHECK(engine.Hear<kvist_status>() == KVIST_OK);
    std::string wrong;
    CHECK(witness.LoadAll(keys, &wrong) == kChunks);
    CHECK(wrong == "");
    Ctl(daemon, {"clear", "--yes"});
    engine.GoOn();
  }
  std::printf("row 3: %d half stores of stopped engines expired, chunks published by their late halves %u\n", stops,
              published);
  CHECK(published == 0);
}
