// Rows 1 and 2 of the fault matrix: engines killed at random moments of store and load, with real processes and real SIGKILL.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "storage/base/unique_fd.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/http_get.h"
#include "tests/support/killed.h"
#include "tests/support/sanitizers.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

using kvist::UniqueFd;
using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsAtRest;
using kvist::test::FdsFallTo;
using kvist::test::FreePort;
using kvist::test::KillUnreaped;
using kvist::test::kSanitized;
using kvist::test::Mappings;
using kvist::test::Metric;
using kvist::test::Shared;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

// What an engine says of itself in memory that outlives it.
struct Diary {
  enum Doing : uint32_t { kOther, kStoring, kLoading };  // operations of it are in flight
  std::atomic<uint32_t> doing{kOther};
  std::atomic<uint32_t> prompt{0}, chunks{0};  // of all that it is loading, into its pages from the first on
  std::atomic<int> memfd{-1};
  std::atomic<uint32_t> hits{0}, wrong{0};  // chunks it has loaded
  std::atomic<bool> stop{false};
};

constexpr uint32_t kPrompts = 40, kChunksMost = 64, kAtOnceMost = 4;  // together all pages of a large engine

// What a doomed engine does until it dies: store, look up, load, with leases and half stores open all the time. Writes a byte to
// `begun` at its first store.
int StoreAndLoadForEver(const DaemonProcess& daemon, uint32_t seed, Diary& diary, int begun) {
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "doomed"));
  if (!engine.status.ok()) return 3;
  diary.memfd = engine.memfd(0);
  kvist::Client& worker = engine.worker(0);
  std::mt19937 random(seed);
  while (true) {
    const uint32_t prompt = 1000 * (random() % kPrompts);
    const uint32_t at_once = 1 + random() % kAtOnceMost, chunks = 4 + random() % (kChunksMost - 3);
    const auto keys = engine.Keys(prompt, chunks * at_once);
    const auto pages = engine.Pages(0, chunks * at_once);
    const auto pages_of = [&](uint32_t first, uint32_t count) {
      return std::span(pages).subspan(size_t{first} * FakeEngine::kPagesPerChunk,
                                      size_t{count} * FakeEngine::kPagesPerChunk);
    };
    for (uint32_t c = 0; c < keys.size(); ++c) engine.Fill(0, keys[c], pages_of(c, 1));
    if (begun >= 0 && ::write(begun, "!", 1) != 1) return 5;
    begun = -1;
    std::vector<kvist_op> ops;
    diary.doing = Diary::kStoring;
    for (uint32_t i = 0; i < at_once; ++i)
      ops.push_back(worker.Store(std::span(keys).first(chunks * (i + 1)), i * chunks, pages_of(i * chunks, chunks)));
    for (const kvist_op op : ops) worker.Wait(op, 10'000'000);
    diary.doing = Diary::kOther;
    ops.clear();

    const kvist::Hit kept = engine.scheduler().Lookup(keys, 60'000'000);
    const kvist::Hit hit = engine.scheduler().Lookup(keys, 60'000'000);
    if (!hit.lease) continue;
    engine.Poison(0, pages);
    diary.prompt = prompt;
    diary.chunks = hit.chunks;
    diary.doing = Diary::kLoading;
    for (uint32_t first = 0; first < hit.chunks; first += chunks) {
      const uint32_t count = std::min(chunks, hit.chunks - first);
      ops.push_back(worker.Load(hit.lease, first, count, pages_of(first, count)));
    }
    bool loaded = true;
    for (const kvist_op op : ops) loaded &= op != 0 && worker.Wait(op, 10'000'000).status == KVIST_OK;
    diary.doing = Diary::kOther;
    for (uint32_t c = 0; loaded && c < hit.chunks; ++c) {
      if (!engine.Check(0, keys[c], pages_of(c, 1)).empty()) return 4;
    }
  }
}

// What an engine beside it does that wants all the slots there are: stores ever other prompts, and loads them again.
int WantEverySlot(const DaemonProcess& daemon, Diary& diary) {
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "bystander"));
  if (!engine.status.ok()) return 3;
  for (uint32_t turn = 0; !diary.stop; ++turn) {
    const auto keys = engine.Keys(1000 * (kPrompts + turn % kPrompts), kChunksMost);
    engine.StoreAll(keys);
    std::string wrong;
    diary.hits += engine.LoadAll(keys, &wrong);
    diary.wrong += !wrong.empty();
  }
  return 0;
}

// A doomed engine, killed at a random moment of its stores and loads: up to 20 ms after its first store began.
struct Death {
  explicit Death(ChildProcess doomed) : engine(std::move(doomed)) {}
  ChildProcess engine;
  Diary::Doing doing = Diary::kOther;  // when it died
  uint32_t prompt = 0, chunks = 0;     // that it was loading
  UniqueFd memory;                     // its pages
  Clock::time_point at;
};
Death KillOne(const DaemonProcess& daemon, std::mt19937* random) {
  int begun[2];
  REQUIRE(::pipe2(begun, O_CLOEXEC) == 0);
  const UniqueFd hear(begun[0]);
  UniqueFd say(begun[1]);
  Shared<Diary> diary;
  const uint32_t doom = (*random)();
  Death death(ChildProcess([&] { return StoreAndLoadForEver(daemon, doom, *diary, say.get()); }));
  say.reset();
  pollfd readable{hear.get(), POLLIN, 0};
  REQUIRE(::poll(&readable, 1, 60'000) == 1);
  death.memory =
      UniqueFd(::open(("/proc/" + std::to_string(death.engine.pid()) + "/fd/" + std::to_string(diary->memfd)).c_str(),
                      O_RDONLY | O_CLOEXEC));
  REQUIRE(death.memory);
  // The moment of death is what this is about.
  std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 20'000));
  death.at = Clock::now();
  CHECK(KillUnreaped(death.engine) == -SIGKILL);  // 4 would be a wrong byte
  death.doing = static_cast<Diary::Doing>(diary->doing.load());
  death.prompt = diary->prompt;
  death.chunks = diary->chunks;
  return death;
}

// How many words of the pages that a dead engine was loading into are neither what they were before nor what was asked for.
// `other`: an engine of the same shape, whose pages are free.
uint64_t ForeignWords(const Death& death, FakeEngine* other) {
  const auto keys = other->Keys(death.prompt, death.chunks);
  const auto pages = other->Pages(0, death.chunks);
  const std::span<std::byte> memory = other->memory(0);
  void* const mapped = ::mmap(nullptr, memory.size(), PROT_READ, MAP_SHARED, death.memory.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  for (uint32_t c = 0; c < keys.size(); ++c) other->Fill(0, keys[c], std::span(pages).subspan(size_t{c} * 4, 4));
  uint64_t foreign = 0;
  const size_t page_bytes = memory.size() / other->options().pages;
  for (const uint32_t page : pages) {
    const std::byte* const found = static_cast<const std::byte*>(mapped) + page * page_bytes;
    const std::byte* const asked = memory.data() + page * page_bytes;
    for (size_t at = 0; at < page_bytes; at += 8) {
      uint64_t word;
      std::memcpy(&word, found + at, 8);
      foreign += word != 0xeeee'eeee'eeee'eeee && std::memcmp(found + at, asked + at, 8) != 0;
    }
  }
  ::munmap(mapped, memory.size());
  return foreign;
}

}  // namespace

TEST_CASE("Rows 1 and 2: engines killed at random moments of store and load leave nothing behind") {
  const int deaths = Campaign("KVIST_DEATHS", 200, 1000);
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  TempDir dir;
  const uint16_t port = FreePort();
  DaemonProcess daemon(dir.path(),
                       {"pool.bytes=128MiB", "copy.threads=1", "metrics.listen=127.0.0.1:" + std::to_string(port)});
  FakeEngine witness(FakeEngine::LargeOn(daemon.socket(), "witness"));
  REQUIRE(witness.status.message == "");
  const auto baseline = StatusOf(daemon);
  (void)Metric(port, "kvist_operations");  // the first time it is asked it may open what it keeps
  const size_t fds = FdsAtRest(daemon), mappings = Mappings(daemon);
  REQUIRE(mappings >= 3);  // two sessions, one memory
  std::mt19937 random(seed);
  std::vector<double> reclaim_ms;
  uint32_t wrong_bytes = 0, hits = 0, storing = 0, loading = 0, outlived = 0;
  for (int i = 0; i < deaths; ++i) {
    const Death death = KillOne(daemon, &random);
    outlived += Metric(port, "kvist_operations") > 0;
    storing += death.doing == Diary::kStoring;
    loading += death.doing == Diary::kLoading;
    while (true) {
      const auto now = StatusOf(daemon);
      if (now["sessions"] == baseline["sessions"] && AtRest(now) && Mappings(daemon) == mappings && daemon.OpenFds() <= fds)
        break;
      INFO(now.dump() << ", " << Mappings(daemon) << " mappings, " << daemon.OpenFds() << " descriptors");
      REQUIRE(Clock::now() - death.at < std::chrono::seconds(20));
    }
    reclaim_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - death.at).count());
    for (int load = 0; load < 2; ++load) {
      std::string wrong;
      hits += witness.LoadAll(witness.Keys(1000 * (random() % kPrompts), kChunksMost), &wrong);
      wrong_bytes += !wrong.empty();
      CHECK(wrong == "");
    }
  }
  CHECK(FdsFallTo(daemon, fds));  // and those of kvistctl since
  CHECK(Mappings(daemon) == mappings);
  Ctl(daemon, {"clear", "--yes"});
  const auto after = StatusOf(daemon);
  const uint64_t leaked = after["pool"]["used_bytes"];
  CHECK(leaked == 0);
  CHECK(AtRest(after));
  CHECK(after["sessions"] == baseline["sessions"]);
  std::sort(reclaim_ms.begin(), reclaim_ms.end());
  const double p99 = reclaim_ms[reclaim_ms.size() * 99 / 100];
  std::printf(
      "rows 1, 2: %d deaths, time to reclaim p50 %.1f ms p99 %.1f ms largest %.1f ms (asked: 1000), leaked %lu bytes, wrong "
      "chunks %u of %u "
      "hits\n"
      "rows 1, 2: %u died with stores in flight and %u with loads; copies of %u of them outlived them\n",
      deaths, reclaim_ms[reclaim_ms.size() / 2], p99, reclaim_ms.back(), leaked, wrong_bytes, hits, storing, loading,
      outlived);
  if (!kvist::test::kThreadSanitizer) CHECK(p99 <= 1000);  // under which the kvistctl that asks takes half a second itself
  if (deaths >= 200) {                                     // fewer may all come in between
    CHECK(hits > 0);
    // Sanitizers slow the engine down, and kvistd: then most die while they fill pages for their first stores.
    const uint32_t enough = kSanitized ? 1 : static_cast<uint32_t>(deaths / 20);
    CHECK(storing >= enough);
    if (!kSanitized) CHECK(loading >= enough);
  }
  CHECK(daemon.Terminate() == 0);
}

// kvistd checks each slot that it frees and aborts where a copy still holds it (Placement::Unreserve); what it might not know of would
// show in bytes: of the engine beside them, whose slots a dead one's store would write, and in pages of the dead, whose loads would
// read another's slots. Both would take luck: tests/sim plants the fault and finds it.
TEST_CASE("Row 2: slots that copies of killed engines hold are not given out before those have ended") {
  const int deaths = Campaign("KVIST_DEATHS", 200, 1000) / 4;
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  TempDir dir;
  // Little more than one engine may lease, so that the other has to take what those who died held.
  DaemonProcess daemon(dir.path(), {"pool.bytes=36MiB", "pool.slab_bytes=4MiB", "lease.share=0.9", "copy.threads=1"});
  Shared<Diary> beside;
  ChildProcess bystander([&] { return WantEverySlot(daemon, *beside); });  // before this process has threads
  FakeEngine witness(FakeEngine::LargeOn(daemon.socket(), "witness"));
  REQUIRE(witness.status.message == "");
  REQUIRE(Eventually([&] { return beside->hits > 0; }));
  const auto baseline = StatusOf(daemon);
  std::mt19937 random(seed);
  uint32_t storing = 0, loading = 0;
  uint64_t foreign = 0;
  for (int i = 0; i < deaths; ++i) {
    const Death death = KillOne(daemon, &random);
    storing += death.doing == Diary::kStoring;
    loading += death.doing == Diary::kLoading;
    const uint32_t hits = beside->hits;
    REQUIRE(Eventually([&] { return StatusOf(daemon)["sessions"] == baseline["sessions"] && beside->hits > hits; }));
    if (death.doing == Diary::kLoading) foreign += ForeignWords(death, &witness);
  }
  beside->stop = true;
  CHECK(bystander.Wait() == 0);
  std::printf(
      "row 2: beside an engine that wants every slot %u died with stores in flight and %u with loads; reuse before fence, "
      "as "
      "far as it shows: wrong chunks of the other %u of %u hits, words of other chunks in pages of those loads %lu\n",
      storing, loading, beside->wrong.load(), beside->hits.load(), foreign);
  CHECK(!daemon.Ended().has_value());
  CHECK(beside->wrong == 0);
  CHECK(foreign == 0);
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
}
