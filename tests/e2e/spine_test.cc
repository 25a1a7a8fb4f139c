// The spine with real processes: engine -> connector -> kvistd -> pinned DRAM -> back.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::BecomeUser;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::InChild;
using kvist::test::TempDir;

TEST_CASE("An engine loads what it stored, bit for bit") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 8);
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 0);
  const kvist_result stored = engine.StoreAll(keys);
  REQUIRE(stored.status == KVIST_OK);
  CHECK(stored.chunks_copied == 8);
  CHECK(engine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  SECTION("a longer prompt hits its stored prefix, and storing the rest completes it") {
    const auto longer = engine.Keys(1, 12);
    CHECK(engine.LoadAll(longer, &wrong) == 8);
    CHECK(wrong == "");
    CHECK(engine.StoreAll(longer, 8).chunks_copied == 4);
    CHECK(engine.LoadAll(longer, &wrong) == 12);
    CHECK(wrong == "");
  }
  SECTION("another prompt shares the common prefix only") {
    CHECK(engine.LoadAll(engine.Keys(2, 8), &wrong) == 2);
    CHECK(wrong == "");
  }
  SECTION("what is there already is skipped") {
    const kvist_result again = engine.StoreAll(keys);
    CHECK(again.status == KVIST_OK);
    CHECK(again.chunks_copied == 0);
    CHECK(again.chunks_skipped == 8);
  }
  SECTION("an engine that was restarted hits") {
    FakeEngine second(FakeEngine::On(daemon.socket()));
    REQUIRE(second.status.ok());
    CHECK(second.LoadAll(keys, &wrong) == 8);
    CHECK(wrong == "");
  }
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("A client that waits for ever for a kvistd is connected when one has come") {
  TempDir dir;
  kvist_connection connection = KVIST_REFUSED;
  std::thread engine([&] {
    FakeEngine::Options options = FakeEngine::On(dir.path() + "/engine.sock");
    options.connect_timeout_us = INT64_MAX;
    FakeEngine waits(options);
    connection = waits.scheduler().connection();
  });
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  engine.join();
  CHECK(connection == KVIST_CONNECTED);
}

TEST_CASE("Signals that reach the connector's threads don't keep a client from connecting again") {
  struct sigaction heard {};
  heard.sa_handler = [](int) {};
  struct sigaction before {};
  REQUIRE(::sigaction(SIGUSR1, &heard, &before) == 0);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 4);
  for (int death = 0; death < 3; ++death) {
    daemon.Kill();
    int signalled = 0;
    for (int i = 0; i < 50; ++i) {
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        if (name != "kvist-keeper") continue;
        signalled += ::syscall(SYS_tgkill, ::getpid(), std::stoi(task.path().filename()), SIGUSR1) == 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    CHECK(signalled >= 50);
    daemon.Start();
    REQUIRE(engine.scheduler().WaitConnected(10'000'000).ok());
    REQUIRE(engine.worker(0).WaitConnected(10'000'000).ok());
    CHECK(engine.StoreAll(keys).status == KVIST_OK);
    CHECK(engine.scheduler().Lookup(keys, 0).chunks == 4);
  }
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

TEST_CASE("Any number of large hints leaves room for who wants an answer") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 4);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const std::vector<kvist_key> many(4096);
  std::vector<double> took;
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));                                // kvistd sleeps by then
    for (int hint = 0; hint < 40; ++hint) CHECK(engine.scheduler().SessionEnded(many).ok());  // together more than the arena
    const auto begin = std::chrono::steady_clock::now();
    const kvist::Hit hit = engine.scheduler().Lookup(keys, 0, 10'000'000);
    took.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    CHECK(hit.status == KVIST_OK);
    CHECK(hit.chunks == 4);
  }
  std::nth_element(took.begin(), took.begin() + 10, took.end());
  CHECK(took[10] < 0.4);  // a wake-up that is lost is made up for after half a second
}

TEST_CASE("A chunk of several ranks is a hit only when all have stored it") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.ranks = 3;
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(7, 4);
  const auto pages = engine.Pages(0, 4);
  std::string wrong;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(engine.scheduler().Lookup(keys, 0).chunks == 0);
    for (uint32_t c = 0; c < 4; ++c) engine.Fill(rank, keys[c], std::span(pages).subspan(c * 4, 4));
    const kvist_op op = engine.worker(rank).Store(keys, 0, pages);
    REQUIRE(op != 0);
    CHECK(engine.worker(rank).Wait(op, 5'000'000).status == KVIST_OK);
  }
  CHECK(engine.LoadAll(keys, &wrong) == 4);
  CHECK(wrong == "");
}

TEST_CASE("Row 34: memory that can be truncated is copied through its descriptor, and truncating it harms nobody") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.sealed = false;
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 8);
  std::string wrong;
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  CHECK(engine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  FakeEngine other(FakeEngine::On(daemon.socket()));  // in the same space, with memory of its own
  REQUIRE(::ftruncate(engine.memfd(0), 4096) == 0);
  const auto more = engine.Keys(50'000, 4);
  const kvist_op op = engine.worker(0).Store(more, 0, engine.Pages(0, 4));
  REQUIRE(op != 0);
  const kvist_result result = engine.worker(0).Wait(op, 5'000'000);
  CHECK(result.status != KVIST_OK);
  CHECK(result.pages_released == 1);
  CHECK(other.scheduler().Lookup(more, 0).chunks == 0);
  const uint32_t served = other.LoadAll(keys, &wrong);
  CHECK(served == 8);
  CHECK(wrong == "");
  const bool crashed = daemon.Ended().has_value();
  std::printf(
      "row 34: memory truncated before a store: it ended with status %d, %u of 8 chunks served beside it, kvistd crashed "
      "%d\n",
      static_cast<int>(result.status), served, crashed ? 1 : 0);
  REQUIRE(!crashed);
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Memory that isn't where it was described is refused, with the page that differs") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.wrong_stride = true;
  FakeEngine engine(options);
  CHECK(engine.status.code == KVIST_FAILED_PRECONDITION);
  CHECK_THAT(engine.status.message, Catch::Contains("page 63 of layer 0"));
  SECTION("also when there is no daemon to see it") {
    daemon.Kill();
    options.connect_timeout_us = 1000;
    FakeEngine alone(options);
    CHECK(alone.status.code == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(alone.status.message, Catch::Contains("page 63 of layer 0"));
  }
}

TEST_CASE("Wrong calls get a typed error that says what to do, and nothing is disturbed") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 4);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  kvist::Hit hit = engine.scheduler().Lookup(keys, 60'000'000);
  REQUIRE(hit.chunks == 4);
  std::vector<uint32_t> pages = engine.Pages(0, 4);
  const auto failed = [&](kvist_op op) { return engine.worker(0).Wait(op, 5'000'000); };

  CHECK(engine.worker(0).Load(hit.lease, 0, 4, std::span(pages).first(3)) == 0);
  CHECK_THAT(kvist_error(), Catch::Contains("page_count is 3"));
  CHECK(failed(engine.worker(0).Load(hit.lease, 2, 4, pages)).status == KVIST_INVALID_ARGUMENT);
  CHECK_THAT(kvist_error(), Catch::Contains("chunks [2, 6) of a lease over [0, 4)"));
  pages[5] = 1 << 20;
  CHECK(failed(engine.worker(0).Load(hit.lease, 0, 4, pages)).status == KVIST_INVALID_ARGUMENT);
  CHECK_THAT(kvist_error(), Catch::Contains("page 1048576 of 64"));
  pages = engine.Pages(0, 4);
  const kvist_lease ended = hit.lease.id();
  hit.lease.Release();
  engine.scheduler().Lookup(keys, 0);  // on the release's ring, so the release has come before this answers
  const kvist::Lease stale(engine.scheduler().get(), ended);
  CHECK(failed(engine.worker(0).Load(stale, 0, 4, pages)).status == KVIST_ABORTED);
  CHECK_THAT(kvist_error(), Catch::Contains("look up again"));
  CHECK(engine.scheduler().Load(stale, 0, 4, pages) == 0);
  CHECK(kvist_poll(engine.worker(0).get(), 12345,
                   std::make_unique<kvist_result>(kvist_result{sizeof(kvist_result), KVIST_OK, 0, 0, 0, 0, 0}).get()) ==
        KVIST_INVALID_ARGUMENT);
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 4);
  CHECK(wrong == "");
}

TEST_CASE("Of two threads that wait for an operation one hears its result, and the other never that it is still under way") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 4);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const kvist::Hit hit = engine.scheduler().Lookup(keys, 60'000'000, 10'000'000);
  REQUIRE(hit.chunks == 4);
  const auto pages = engine.Pages(0, 4);
  constexpr int kLoads = 20'000;  // as many as there is time for within the lease
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::atomic<kvist_op> under_way{0};
  std::atomic<bool> done{false};
  uint32_t pending = 0, heard = 0, late = 0;
  std::thread other([&] {
    kvist_op last = 0;
    while (!done) {
      const kvist_op op = under_way;
      if (op == last) continue;
      last = op;
      const kvist_result result = engine.worker(0).Wait(op, 10'000'000);
      pending += result.status == KVIST_PENDING;
      heard += result.status == KVIST_OK;
      late += result.status == KVIST_INVALID_ARGUMENT;
    }
  });
  uint32_t wrong = 0;
  int loads = 0;
  for (; loads < kLoads && std::chrono::steady_clock::now() < enough; ++loads) {
    // Each takes the cell that the one before it has given back.
    const kvist_op op = engine.worker(0).Load(hit.lease, 0, 4, pages);
    if (op == 0) break;
    under_way = op;
    kvist_result result = engine.worker(0).Wait(op, 0);
    while (result.status == KVIST_PENDING) result = engine.worker(0).Wait(op, 0);
    wrong += result.status != KVIST_OK && result.status != KVIST_INVALID_ARGUMENT;
  }
  done = true;
  other.join();
  std::printf("%d loads that two threads wait for: the other one heard %u results, came too late for %u, was wrong on %u\n",
              loads, heard, late, pending);
  CHECK(wrong == 0);
  CHECK(pending == 0);
  CHECK(late > 0);
}

TEST_CASE("A store that is given up is never seen, and its pages are free at once") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=256MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.pages = 4096;
  options.segment_bytes = 4096;
  FakeEngine engine(options);
  REQUIRE(engine.status.ok());
  std::string wrong;
  for (uint32_t round = 0; round < 50; ++round) {
    const auto keys = engine.Keys(1000 * round, 200);
    const auto pages = engine.Pages(0, 200);
    for (uint32_t c = 0; c < 200; ++c) engine.Fill(0, keys[c], std::span(pages).subspan(c * 4, 4));
    const kvist_op op = engine.worker(0).Store(keys, 0, pages);
    REQUIRE(op != 0);
    REQUIRE(engine.worker(0).Cancel(op).ok());
    engine.Poison(0, pages);  // while the daemon may be copying
    const kvist_result result = engine.worker(0).Poll(op);
    CHECK(result.status != KVIST_PENDING);
    CHECK(result.pages_released == 1);
    engine.LoadAll(keys, &wrong);
    CHECK(wrong == "");
  }
}

TEST_CASE("Two users never hit each other's chunks") {
  if (::getuid() != 0) {
    WARN("skipped: only root can run an engine as another user");
    return;
  }
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "session.socket_mode=0666"});
  std::vector<kvist_key> keys;
  {  // gone before the other one comes: ThreadSanitizer takes threads of this process for the child's
    FakeEngine mine(FakeEngine::On(daemon.socket()));
    REQUIRE(mine.status.ok());
    keys = mine.Keys(1, 8);
    REQUIRE(mine.StoreAll(keys).status == KVIST_OK);
  }
  // With the same instance name, model and keys.
  CHECK(InChild([&] {
          BecomeUser(dir.path(), 65534, 65534);
          FakeEngine theirs(FakeEngine::On("engine.sock"));
          if (!theirs.status.ok()) return 11;
          std::string wrong;
          if (theirs.LoadAll(keys, &wrong) != 0) return 12;
          if (theirs.StoreAll(keys).chunks_copied != 8) return 13;
          return theirs.LoadAll(keys, &wrong) == 8 && wrong.empty() ? 0 : 14;
        }) == 0);
  FakeEngine mine(FakeEngine::On(daemon.socket()));
  std::string wrong;
  CHECK(mine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
}
