// Rows 1 and 2 of the fault matrix for one rank of two: the other and the scheduler keep what they have.
#include <catch2/catch.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/killed.h"
#include "tests/support/sanitizers.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsAtRest;
using kvist::test::KillUnreaped;
using kvist::test::kSanitized;
using kvist::test::Mappings;
using kvist::test::Shared;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using Clock = std::chrono::steady_clock;

namespace {

enum Doing : uint32_t { kStoring = 1, kLoading = 2 };  // operations of it are in flight
constexpr uint32_t kPrompts = 40;

// What the scheduler of an engine of two ranks and one of its ranks, a process each, tell each other.
struct RankDiary {
  // Store this prompt, if any; from then on load what is leased, if anything is, and store other prompts, if told to, until the next order.
  struct Order {
    uint32_t store = 0, leased = 0;  // prompts; 0: none
    uint64_t lease = 0;
    bool store_others = false;
  };
  Order order;                               // the scheduler's while both are equal, else the rank's
  std::atomic<uint32_t> asked{0}, begun{0};  // orders
  // Told by the rank.
  std::atomic<uint32_t> in_flight{0};                // bits of Doing
  std::atomic<uint32_t> stores{0}, loads{0};         // of others, that it has begun; that ended well
  std::atomic<uint32_t> failed{0}, wrong{0};         // loads; chunks
  std::atomic<kvist_status> store_status{KVIST_OK};  // of the prompt that it was to store last,
  std::atomic<uint32_t> stored{0};                   // and its chunks that it copied
};

constexpr uint32_t kRanks = 2, kOrdered = 16, kOthers = 32;  // chunks of a prompt

FakeEngine::Options OfTwoRanks(const DaemonProcess& daemon) {
  FakeEngine::Options options = FakeEngine::LargeOn(daemon.socket(), "two-ranks");
  options.ranks = kRanks;
  // The machine may be busy, and what is asked here is that all of it is there. A handshake that is given up and begun again opens a
  // session and ends it, which takes the other rank's half stores along.
  options.connect_timeout_us = 60'000'000;
  options.deadline_us = 10'000'000;
  return options;
}

// What a rank does. All ranks store the same prompts in the same order, each at its own pace: so at any time some chunks are whole and some
// are half stores, of this rank or of the other.
int WorkAsRank(const DaemonProcess& daemon, uint32_t rank, RankDiary& diary) {
  FakeEngine::Options options = OfTwoRanks(daemon);
  options.scheduler = false;
  options.first_rank = rank;
  options.end_rank = rank + 1;
  FakeEngine engine(options);
  if (!engine.status.ok()) return 3;
  kvist::Client& worker = engine.worker(rank);
  const auto to_store = engine.Pages(0, kOthers), to_load = engine.Pages(kOthers, kOrdered);
  const auto of_chunk = [](const std::vector<uint32_t>& pages, uint32_t c) {
    return std::span(pages).subspan(size_t{c} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
  };
  RankDiary::Order order;
  for (uint32_t turn = 0;;) {
    if (const uint32_t asked = diary.asked; asked != diary.begun) {
      order = diary.order;
      if (order.store != 0) {
        const kvist_result stored = engine.StoreAll(engine.Keys(order.store, kOrdered));
        diary.store_status = stored.status;
        diary.stored = stored.chunks_copied;
      }
      diary.begun = asked;
    }
    kvist_op store = 0, load = 0;
    if (order.store_others) {
      const auto keys = engine.Keys(1000 * (1 + turn++ % kPrompts), kOthers);
      for (uint32_t c = 0; c < kOthers; ++c) engine.Fill(rank, keys[c], of_chunk(to_store, c));
      ++diary.stores;
      diary.in_flight |= kStoring;
      store = worker.Store(keys, 0, to_store);
    }
    if (order.lease != 0) {
      engine.Poison(rank, to_load);
      kvist_load_args args{};
      args.struct_size = sizeof args;
      args.lease = order.lease;
      args.chunk_count = kOrdered;
      args.pages = to_load.data();
      args.page_count = to_load.size();
      diary.in_flight |= kLoading;
      kvist_load(worker.get(), &args, &load);
    }
    const bool loaded = load != 0 && worker.Wait(load, 10'000'000).status == KVIST_OK;
    diary.in_flight &= ~uint32_t{kLoading};
    if (store != 0) worker.Wait(store, 10'000'000);
    diary.in_flight = 0;
    const auto keys = engine.Keys(order.leased, kOrdered);
    for (uint32_t c = 0; loaded && c < kOrdered; ++c)
      diary.wrong += !engine.Check(rank, keys[c], of_chunk(to_load, c)).empty();
    diary.loads += loaded;
    diary.failed += order.lease != 0 && !loaded;
    if (order.lease == 0 && !order.store_others) ::usleep(200);
  }
}

// What a file ends with.
std::string EndOf(const std::string& path) {
  constexpr size_t kMost = 4000;
  std::ifstream file(path);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  return all.substr(all.size() - std::min(all.size(), kMost));
}

// A rank: its process, and what it tells.
struct RankProcess {
  explicit RankProcess(const DaemonProcess& daemon, uint32_t rank)
      : process([&daemon, rank, this] { return WorkAsRank(daemon, rank, *diary); }) {}

  // Returns when the rank has stored what it was to store; what it did before has ended.
  void Ask(const RankDiary::Order& order) {
    diary->order = order;
    const uint32_t wanted = ++diary->asked;
    REQUIRE(Eventually([&] { return diary->begun == wanted; }));
    if (order.store == 0) return;
    INFO("a store that ended as " << diary->store_status);
    REQUIRE(diary->stored == kOrdered);
  }
  // Returns when one more load is in flight, at once: what is done next is done while it is.
  void AwaitLoad() {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    const auto in_flight = [this] { return (diary->in_flight & kLoading) != 0; };
    while (in_flight() && Clock::now() < deadline) {}  // that one may be about to end
    while (!in_flight() && Clock::now() < deadline) {}
  }
  // Whether loads end well.
  bool Loads() {
    return UntilItGoesOn([&] { return diary->loads.load(); }, std::chrono::seconds(10)) >= 0;
  }

  Shared<RankDiary> diary;
  ChildProcess process;
};

}  // namespace

TEST_CASE("Rows 1 and 2: one rank of an engine killed leaves the other and the scheduler what they have") {
  const int deaths = Campaign("KVIST_RANK_DEATHS", 20, 200);
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  constexpr int64_t kLeaseMicros = 600'000'000;
  TempDir dir;
  const std::string log = dir.path() + "/kvistd.log";
  DaemonProcess daemon(dir.path(),
                       {"pool.bytes=128MiB", "copy.threads=1", "lease.max=600s", "lease.half_store=600s", "log.level=info"},
                       "", "exec 2>" + log);
  std::unique_ptr<RankProcess> ranks[kRanks];
  // Before this process has a thread that just begins: a fork beside it may leave the child a sanitizer's allocator that is locked for good.
  ranks[0] = std::make_unique<RankProcess>(daemon, 0);
  FakeEngine::Options options = OfTwoRanks(daemon);
  options.end_rank = 0;
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  kvist::Client& scheduler = engine.scheduler();
  ranks[0]->Ask({});
  const auto without_one = StatusOf(daemon);
  const size_t fds = FdsAtRest(daemon), mappings = Mappings(daemon);
  REQUIRE(mappings >= 3);  // two sessions, one memory
  ranks[1] = std::make_unique<RankProcess>(daemon, 1);
  ranks[1]->Ask({});
  std::mt19937 random(seed);
  std::vector<double> reclaim_ms;
  uint32_t storing = 0, loading = 0, half_stores = 0, loads = 0, failed = 0, wrong = 0;
  const auto take_down = [&](const RankProcess& rank) {
    loads += rank.diary->loads;
    failed += rank.diary->failed;
    wrong += rank.diary->wrong;
  };
  for (int i = 0; i < deaths; ++i) {
    const uint32_t before = 1000 * (100 + 2 * static_cast<uint32_t>(i)), beyond = before + 1000;  // prompts
    for (auto& rank : ranks) rank->Ask({.store = before});
    const kvist::Hit hit = scheduler.Lookup(engine.Keys(before, kOrdered), kLeaseMicros);
    REQUIRE(hit.chunks == kOrdered);
    REQUIRE(hit.lease);
    for (auto& rank : ranks) rank->Ask({.leased = before, .lease = hit.lease.id(), .store_others = true});
    const uint32_t victim = random() % kRanks;
    RankProcess& doomed = *ranks[victim];
    RankProcess& other = *ranks[1 - victim];
    const uint32_t stores = doomed.diary->stores;
    REQUIRE(Eventually([&] { return doomed.diary->stores != stores; }));
    // The other's half stores go with the dead rank. Later ones are for its successor: there are none, so that nothing may be left.
    other.Ask({.leased = before, .lease = hit.lease.id()});
    half_stores += StatusOf(daemon)["filling"] > 0;
    // The moment of death is what this is about: any, and every second time the next one at which a load is in flight, which is so for a
    // seventh of the time.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    if (i % 2 == 1) doomed.AwaitLoad();
    const auto death = Clock::now();
    CHECK(KillUnreaped(doomed.process) == -SIGKILL);
    storing += (doomed.diary->in_flight & kStoring) != 0;
    loading += (doomed.diary->in_flight & kLoading) != 0;
    while (true) {
      const auto now = StatusOf(daemon);
      if (now["sessions"] == without_one["sessions"] && now["filling"] == 0 && now["leases"] == 1 && now["ops"] <= 1 &&
          Mappings(daemon) == mappings && daemon.OpenFds() <= fds)
        break;
      INFO(now.dump() << ", " << Mappings(daemon) << " mappings, " << daemon.OpenFds() << " descriptors");
      REQUIRE(Clock::now() - death < std::chrono::seconds(20));
    }
    reclaim_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - death).count());
    take_down(doomed);
    ranks[victim] = nullptr;  // reaped before the other's halves begin to wait: see killed.h

    CHECK(other.Loads());
    CHECK(scheduler.Lookup(engine.Keys(before, kOrdered), 0).chunks == kOrdered);
    other.Ask({.store = beyond, .leased = before, .lease = hit.lease.id()});
    CHECK(scheduler.Lookup(engine.Keys(beyond, kOrdered), 0).chunks == 0);  // one rank's half

    ranks[victim] = std::make_unique<RankProcess>(daemon, victim);
    ranks[victim]->Ask({.store = beyond, .leased = before, .lease = hit.lease.id()});
    CHECK(ranks[victim]->Loads());
    const kvist::Hit whole = scheduler.Lookup(engine.Keys(beyond, kOrdered), kLeaseMicros);
    // Half stores that an end of a session took along are new ones now.
    INFO(StatusOf(daemon).dump() << ", rank " << victim << " was killed last, and kvistd said\n" << EndOf(log));
    REQUIRE(whole.status == KVIST_OK);
    REQUIRE(whole.chunks == kOrdered);
    for (auto& rank : ranks) rank->Ask({.leased = beyond, .lease = whole.lease.id()});
    for (auto& rank : ranks) CHECK(rank->Loads());
    for (auto& rank : ranks) rank->Ask({});
  }
  for (auto& rank : ranks) {
    take_down(*rank);
    CHECK(rank->process.Kill() == -SIGKILL);
  }
  std::sort(reclaim_ms.begin(), reclaim_ms.end());
  std::printf(
      "rows 1, 2: %d deaths of one rank of two, time to reclaim p50 %.1f ms largest %.1f ms (asked: 1000), %u with stores "
      "in flight, %u with loads, %u with half stores; of %u loads %u failed, wrong chunks %u\n",
      deaths, reclaim_ms[reclaim_ms.size() / 2], reclaim_ms.back(), storing, loading, half_stores, loads, failed, wrong);
  if (!kSanitized) CHECK(reclaim_ms[reclaim_ms.size() * 9 / 10] <= 1000);
  CHECK(failed == 0);
  CHECK(wrong == 0);
  if (deaths >= 20 && !kSanitized) {
    CHECK(storing > 0);
    CHECK(loading > 0);
    CHECK(half_stores > 0);
  }
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
  CHECK(daemon.Terminate() == 0);
}
