// kvist_lookup in two halves, for schedulers that never wait: what the halves answer, and what becomes of questions that nobody hears the
// answer to, with a kvistd that answers, stands still, and dies.
#include <catch2/catch.hpp>

#include <signal.h>

#include <chrono>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kLeaseUs = 60'000'000;
constexpr int64_t kSoonUs = 5'000'000;

bool NoLeases(const DaemonProcess& daemon) {
  return Eventually([&] { return StatusOf(daemon)["leases"] == 0; });
}

}  // namespace

TEST_CASE("A lookup in two halves finds what a lookup finds") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const kvist_op op = engine.scheduler().StartLookup(engine.Keys(1, 12), kLeaseUs);
  REQUIRE(op != 0);
  kvist::Hit hit = engine.scheduler().LookupResult(op, kSoonUs);
  CHECK(hit.status == KVIST_OK);
  CHECK(hit.chunks == 8);
  CHECK(hit.lease);
  CHECK(StatusOf(daemon)["leases"] == 1);
  hit.lease.Release();
  CHECK(NoLeases(daemon));

  SECTION("its answer is heard once") {
    CHECK(engine.scheduler().LookupResult(op).status == KVIST_INVALID_ARGUMENT);
    CHECK(engine.scheduler().Cancel(op).ok());
  }
  SECTION("it is no copy, and a copy is no lookup") {
    const kvist_op asked = engine.scheduler().StartLookup(keys, 0);
    CHECK(engine.scheduler().Poll(asked).status == KVIST_INVALID_ARGUMENT);
    CHECK(engine.scheduler().LookupResult(asked, kSoonUs).chunks == 8);
    const kvist_op store = engine.worker(0).Store(engine.Keys(1, 9), 8, engine.Pages(0, 1));
    CHECK(engine.worker(0).LookupResult(store).status == KVIST_INVALID_ARGUMENT);
    CHECK(engine.worker(0).Wait(store, kSoonUs).pages_released == 1);
  }
  SECTION("a lookup of nothing finds nothing") {
    CHECK(engine.scheduler().StartLookup({}, kLeaseUs) == 0);
    CHECK(engine.scheduler().LookupResult(0).status == KVIST_OK);
  }
}

TEST_CASE("A question that was given up keeps no lease") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  daemon.Signal(SIGSTOP);
  const kvist_op given_up = engine.scheduler().StartLookup(keys, kLeaseUs);
  const kvist_op late = engine.scheduler().StartLookup(keys, kLeaseUs, 20'000);
  CHECK(engine.scheduler().LookupResult(given_up).status == KVIST_PENDING);
  CHECK(engine.scheduler().LookupResult(given_up, 1000).status == KVIST_PENDING);
  CHECK(engine.scheduler().Cancel(given_up).ok());
  CHECK(engine.scheduler().LookupResult(given_up).status == KVIST_INVALID_ARGUMENT);
  CHECK(engine.scheduler().LookupResult(late, kSoonUs).status == KVIST_DEADLINE_EXCEEDED);
  daemon.Signal(SIGCONT);
  CHECK(engine.scheduler().Lookup(keys, 0).chunks == 8);  // behind both on the ring: they have been answered
  CHECK(NoLeases(daemon));
}

TEST_CASE(
    "Questions to a kvistd that stands still are refused at once when there is no room for more, and are misses when it "
    "dies") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  daemon.Signal(SIGSTOP);
  constexpr int64_t kDeadlineUs = 60'000'000;
  const auto begin = Clock::now();
  std::vector<kvist_op> ops;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    kvist_op op = 0;
    const kvist_status status =
        kvist_lookup_start(engine.scheduler().get(), keys.data(), keys.size(), 0, kLeaseUs, kDeadlineUs, &op);
    if (status == KVIST_OK) ops.push_back(op);
    refused += status == KVIST_RESOURCE_EXHAUSTED;
  }
  CHECK(refused == 2000 - static_cast<int>(ops.size()));
  CHECK(ops.size() >= 1000);
  CHECK(refused >= 900);
  CHECK(Clock::now() - begin < std::chrono::microseconds(kDeadlineUs));  // waiting for room would take one each
  daemon.Signal(SIGCONT);
  SECTION("it goes on") {
    for (const kvist_op op : ops) REQUIRE(engine.scheduler().LookupResult(op, kSoonUs).status == KVIST_OK);
    CHECK(NoLeases(daemon));
  }
  SECTION("it dies") {
    daemon.Kill();
    for (const kvist_op op : ops) {
      const kvist::Hit hit = engine.scheduler().LookupResult(op, kSoonUs);
      REQUIRE((hit.status == KVIST_UNAVAILABLE || hit.status == KVIST_OK));
    }
    // It may have answered all of them before it died, and then nobody here has heard of that yet.
    REQUIRE(kvist::test::Eventually([&] { return engine.scheduler().connection() != KVIST_CONNECTED; }));
    CHECK(engine.scheduler().StartLookup(keys, kLeaseUs) == 0);
  }
}

TEST_CASE("Where chunks are is asked in two halves, too, and is no use of them") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "ssd.enabled=true", "ssd.capacity=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  std::vector<uint8_t> tiers;
  REQUIRE(engine.scheduler().Where(engine.Keys(1, 10), &tiers).ok());
  CHECK(tiers == std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 1, 0, 0});
  REQUIRE(engine.scheduler().Flush(30'000'000).ok());
  REQUIRE(engine.worker(0).Where(keys, &tiers).ok());  // of any session
  CHECK(tiers == std::vector<uint8_t>(8, KVIST_IN_DRAM | KVIST_ON_SSD));

  const auto start = [&](std::span<const kvist_key> asked, uint32_t group, kvist_op* op) {
    return kvist_where_start(engine.scheduler().get(), asked.data(), asked.size(), group, 0, op);
  };
  uint8_t answer[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  kvist_op op = 0;
  SECTION("what can't be asked is said") {
    const auto many = engine.Keys(1, KVIST_WHERE_KEYS_MAX + 1);
    CHECK(start(many, 0, &op) == KVIST_INVALID_ARGUMENT);
    CHECK(start(std::span(many).first(0), 0, &op) == KVIST_INVALID_ARGUMENT);
    CHECK(start(keys, 1, &op) == KVIST_INVALID_ARGUMENT);
    CHECK(op == 0);
    CHECK(start(std::span(many).first(KVIST_WHERE_KEYS_MAX), 0, &op) == KVIST_OK);
    CHECK(kvist_where_result(engine.scheduler().get(), op, kSoonUs, answer, 8) == KVIST_OK);  // the first of them
    CHECK(answer[7] == (KVIST_IN_DRAM | KVIST_ON_SSD));
  }
  SECTION("it is no lookup, no copy, and heard once") {
    REQUIRE(start(keys, 0, &op) == KVIST_OK);
    CHECK(engine.scheduler().LookupResult(op).status == KVIST_INVALID_ARGUMENT);
    CHECK(engine.scheduler().Poll(op).status == KVIST_INVALID_ARGUMENT);
    CHECK(kvist_where_result(engine.scheduler().get(), op, kSoonUs, answer, 8) == KVIST_OK);
    CHECK(kvist_where_result(engine.scheduler().get(), op, 0, answer, 8) == KVIST_INVALID_ARGUMENT);
    CHECK(answer[0] == 0);  // nothing is known where nothing was heard
  }
  SECTION("it ends with its deadline, with a cancel and with kvistd") {
    daemon.Signal(SIGSTOP);
    kvist_op late = 0, cancelled = 0;
    REQUIRE(kvist_where_start(engine.scheduler().get(), keys.data(), keys.size(), 0, 20'000, &late) == KVIST_OK);
    REQUIRE(start(keys, 0, &cancelled) == KVIST_OK);
    REQUIRE(kvist_where_start(engine.scheduler().get(), keys.data(), keys.size(), 0, kSoonUs, &op) == KVIST_OK);
    CHECK(kvist_where_result(engine.scheduler().get(), op, 0, answer, 8) == KVIST_PENDING);
    CHECK(kvist_where_result(engine.scheduler().get(), late, kSoonUs, answer, 8) == KVIST_DEADLINE_EXCEEDED);
    CHECK(engine.scheduler().Cancel(cancelled).ok());
    CHECK(kvist_where_result(engine.scheduler().get(), cancelled, 0, answer, 8) == KVIST_INVALID_ARGUMENT);
    daemon.Kill();
    CHECK(kvist_where_result(engine.scheduler().get(), op, kSoonUs, answer, 8) == KVIST_UNAVAILABLE);
    REQUIRE(Eventually([&] { return engine.scheduler().connection() != KVIST_CONNECTED; }));
    CHECK(start(keys, 0, &op) == KVIST_UNAVAILABLE);
  }
}
