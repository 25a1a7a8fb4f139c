// A store beyond the node, with real kvistds, and a real redis-server or a directory that they share: what one node's engine stored another's
// hits; and rows 16 to 19 of the fault matrix: one that is gone, slow, hung or lying costs misses in time, and never a wrong byte.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/files_under.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_server.h"
#include "tests/support/sanitizers.h"
#include "tests/support/slow_proxy.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FilesUnder;
using kvist::test::RedisCluster;
using kvist::test::RedisServer;
using kvist::test::SlowProxy;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 12;  // of a prompt
constexpr const char* kSecret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

// A node without a disk, in a folder of its own.
class RemoteNode {
 public:
  RemoteNode(const std::string& store, const std::string& secret_file, std::vector<std::string> more = {}) {
    std::vector<std::string> settings{
        "ssd.enabled=false", "pool.bytes=64MiB",      "pool.slab_bytes=1MiB",  "pool.touch_threads=0",
        "lease.share=0.9",   "remote.store=" + store, "remote.lookup_wait=2s", "remote.secret_file=" + secret_file};
    settings.insert(settings.end(), more.begin(), more.end());
    daemon = std::make_unique<DaemonProcess>(dir.path(), settings);
  }

  const TempDir dir;
  std::unique_ptr<DaemonProcess> daemon;
};

std::string SecretIn(const TempDir& dir, const std::string& digits = kSecret) {
  const std::string path = dir / ("secret-" + digits.substr(0, 4));
  std::ofstream(path) << digits << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return path;
}

std::string StoreOf(const RedisServer& redis) { return "redis://" + redis.socket(); }

std::unique_ptr<FakeEngine> EngineOn(const RemoteNode& node, uint32_t ranks = 1, bool half_empty = false) {
  FakeEngine::Options options = FakeEngine::On(node.daemon->socket());
  options.ranks = ranks;
  options.half_empty = half_empty;
  auto engine = std::make_unique<FakeEngine>(options);
  REQUIRE(engine->status.ok());
  return engine;
}

std::vector<kvist_key> RemotePrompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

// How much of a prompt a lookup with a lease finds, which asks the store.
uint32_t HitsOf(FakeEngine& engine, const std::vector<kvist_key>& keys) {
  return engine.scheduler().Lookup(keys, 5'000'000, 10'000'000).chunks;
}

bool Reaches(const DaemonProcess& daemon) { return StatusOf(daemon)["remote"]["reachable"] == true; }
uint64_t Written(const DaemonProcess& daemon) { return StatusOf(daemon)["remote"]["chunks_written"]; }

double MillisSince(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

// What takes its time where sanitizers take theirs.
constexpr double kSlack = kvist::test::kSanitized ? 4 : 1;

std::string TokensOf(const TempDir& dir, uint32_t p) {
  const std::string path = dir / ("tokens-" + std::to_string(p));
  std::ofstream file(path);
  for (const uint32_t token : FakeEngine::Tokens(p * 1000, kChunks)) file << token << " ";
  return path;
}

ptrdiff_t ThreadsOf(const DaemonProcess& daemon) {
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(daemon.pid()) + "/task");
  return std::distance(begin(threads), end(threads));
}

// The last one of its kind; null: there is none.
nlohmann::json LastJob(const RemoteNode& node, const char* kind) {
  nlohmann::json found;
  const nlohmann::json jobs = Ctl(*node.daemon, {"jobs"}).at("jobs");
  for (const nlohmann::json& any : jobs) {
    if (any["kind"] == kind) found = any;
  }
  return found;
}

// What nothing is left of once all that hangs has been given up.
bool NothingIsBound(const DaemonProcess& daemon) {
  const nlohmann::json status = StatusOf(daemon);
  return status["leases"] == 0 && status["ops"] == 0 && status["filling"] == 0 &&
         status["remote"]["bytes_on_their_way"] == 0;
}

// Lookups of prompts that nobody has stored, while the store doesn't answer in time: what they take beside the wait that is configured.
struct Waits {
  double longest = 0, sum = 0;
  int waited = 0;  // lookups that took half of that wait or more
};
Waits LookUpInVain(FakeEngine& engine, int lookups, double wait_ms) {
  Waits waits;
  for (int i = 0; i < lookups; ++i) {
    const auto began = std::chrono::steady_clock::now();
    CHECK(HitsOf(engine, RemotePrompt(engine, 100 + static_cast<uint32_t>(i))) == 0);
    const double took = MillisSince(began);
    waits.longest = std::max(waits.longest, took);
    waits.sum += took;
    waits.waited += took >= wait_ms / 2;
  }
  CHECK(waits.longest < kSlack * (wait_ms + 400));
  CHECK(waits.waited < lookups / 2);  // then it is left alone
  return waits;
}

// Prompts that a's engine stores are hits for b's, and right; a clear on both is one that lasts.
void SharesPrompts(const std::string& store, const std::vector<std::string>& settings, uint32_t ranks,
                   const std::string& compressed_there = "") {
  const TempDir shared;
  const std::string secret = SecretIn(shared);
  const bool half_empty =
      std::find(settings.begin(), settings.end(), "remote.codec=lossless") != settings.end() || !compressed_there.empty();
  const RemoteNode a(store, secret, settings);
  const RemoteNode b(store, secret, settings);
  const auto writer = EngineOn(a, ranks, half_empty);
  const auto reader = EngineOn(b, ranks, half_empty);
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  for (uint32_t p = 0; p < 4; ++p) REQUIRE(writer->StoreAll(RemotePrompt(*writer, p)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*a.daemon) == 4 * kChunks; }));
  for (uint32_t p = 0; p < 4 && !compressed_there.empty(); ++p) {
    Ctl(*a.daemon, {"compress", "--tokens", TokensOf(shared, p), "--tier", "remote:shared", "--method", compressed_there});
  }
  for (uint32_t p = 0; p < 4; ++p) {
    std::string wrong;
    CHECK(reader->LoadAll(RemotePrompt(*reader, p), &wrong) == kChunks);
    CHECK(wrong.empty());
  }
  // From now on it is b's own, and not written again.
  const nlohmann::json status = StatusOf(*b.daemon)["remote"];
  CHECK(status["chunks_read"] == 4 * kChunks);
  CHECK(status["chunks_written"] == 0);
  CHECK(status["name"] == "remote:shared");
  // What is half empty has come as less.
  const auto slots = uint64_t{4} * kChunks * ranks * reader->options().layers * 2 * reader->options().segment_bytes *
                     FakeEngine::kPagesPerChunk;
  CHECK((10 * status["bytes_read"].get<uint64_t>() < 8 * slots) == half_empty);

  // A clear on one node is one on both, and stays when they are started again.
  Ctl(*b.daemon, {"clear", "--yes"});
  CHECK(HitsOf(*reader, RemotePrompt(*reader, 1)) == 0);
  Ctl(*a.daemon, {"clear", "--yes"});
  a.daemon->Kill();
  b.daemon->Kill();
  a.daemon->Start();
  b.daemon->Start();
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  const auto again = EngineOn(b, ranks, half_empty);
  for (uint32_t p = 0; p < 4; ++p) CHECK(HitsOf(*again, RemotePrompt(*again, p)) == 0);
}

}  // namespace

TEST_CASE("what one node's engine stored another node's engine hits") {
  const TempDir shared;
  const auto ranks = GENERATE(1U, 2U);
  const auto kind = GENERATE(as<std::string>(), "redis", "redis, encrypted", "redis, lossless", "redis, compressed there",
                             "a cluster", "directory");
  CAPTURE(ranks, kind);
  std::unique_ptr<RedisServer> redis;
  std::string store = "file://" + shared.path();
  std::unique_ptr<RedisCluster> cluster;
  if (kind == "a cluster") {
    cluster = std::make_unique<RedisCluster>(3);
    store = "redis://" + cluster->address(1);
  } else if (kind != "directory") {
    redis = std::make_unique<RedisServer>();
    store = StoreOf(*redis);
  }
  const std::vector<std::string> more{kind == "redis, encrypted" ? "remote.encrypt=true" : "remote.encrypt=false",
                                      kind == "redis, lossless" ? "remote.codec=lossless" : "remote.codec=none"};
  SharesPrompts(store, more, ranks, kind == "redis, compressed there" ? "lossless" : "");
}

// With moto's server (tests/unit/remote/moto.sh), whose bucket outlives a test.
TEST_CASE("what one node's engine stored another node's engine hits, by S3", "[.moto]") {
  const char* const endpoint = std::getenv("KVIST_S3_ENDPOINT");
  REQUIRE(endpoint != nullptr);
  const TempDir own;
  const std::string credentials = own / "credentials";
  std::ofstream(credentials) << "access_key = \"access\"\nsecret_key = \"secret\"\n";
  std::filesystem::permissions(credentials, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const bool encrypted = GENERATE(false, true);
  const auto prefix = std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  SharesPrompts("s3://kvist-test/" + prefix,
                {std::string("remote.s3_endpoint=") + endpoint, "remote.s3_path_style=true",
                 "remote.credentials_file=" + credentials, encrypted ? "remote.encrypt=true" : "remote.codec=lossless"},
                1);
}

TEST_CASE("a clear on one node is seen by the other within its markers' time") {
  const TempDir shared;
  const std::string secret = SecretIn(shared);
  const RedisServer redis;
  const RemoteNode a(StoreOf(redis), secret), b(StoreOf(redis), secret);
  const auto writer = EngineOn(a);
  const auto reader = EngineOn(b);
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  constexpr uint32_t kPrompts = 60;
  for (uint32_t p = 0; p < kPrompts; ++p) REQUIRE(writer->StoreAll(RemotePrompt(*writer, p)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*a.daemon) == kPrompts * kChunks; }));
  REQUIRE(HitsOf(*reader, RemotePrompt(*reader, 0)) == kChunks);  // b has read the marker, and prompt 0
  Ctl(*a.daemon, {"clear", "--yes"});
  // What b finds meanwhile is b's own from then on: another one each time.
  uint32_t asked = 0;
  while (HitsOf(*reader, RemotePrompt(*reader, ++asked)) > 0) {
    REQUIRE(asked + 1 < kPrompts);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // What b keeps itself is b's; what it stores from now on is of the new generation, and a hit for a.
  REQUIRE(reader->StoreAll(RemotePrompt(*reader, 500)).status == KVIST_OK);
  CHECK(Eventually([&] { return HitsOf(*writer, RemotePrompt(*writer, 500)) == kChunks; }));
}

TEST_CASE("a node that was away during another one's clear finds nothing of what was cleared") {
  const TempDir shared;
  const std::string secret = SecretIn(shared);
  const RedisServer redis;
  const RemoteNode a(StoreOf(redis), secret), b(StoreOf(redis), secret);
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  Ctl(*a.daemon, {"clear", "--yes"});
  {
    const auto writer = EngineOn(a);
    REQUIRE(writer->StoreAll(RemotePrompt(*writer, 0)).status == KVIST_OK);
    REQUIRE(Eventually([&] { return Written(*a.daemon) == kChunks; }));
    const auto reader = EngineOn(b);
    REQUIRE(Eventually([&] { return HitsOf(*reader, RemotePrompt(*reader, 0)) == kChunks; }));
  }
  a.daemon->Kill();
  Ctl(*b.daemon, {"clear", "--yes"});
  const auto others = EngineOn(b);
  REQUIRE(others->StoreAll(RemotePrompt(*others, 1)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*b.daemon) == kChunks; }));
  a.daemon->Start();
  REQUIRE(Eventually([&] { return Reaches(*a.daemon); }));
  const auto again = EngineOn(a);
  CHECK(HitsOf(*again, RemotePrompt(*again, 0)) == 0);
  CHECK(HitsOf(*again, RemotePrompt(*again, 1)) == kChunks);
}

TEST_CASE("without the secret nothing is found, and what is there says nothing") {
  const TempDir shared;
  const RedisServer redis;
  const RemoteNode a(StoreOf(redis), SecretIn(shared)), b(StoreOf(redis), SecretIn(shared, std::string(64, '7')));
  const auto writer = EngineOn(a);
  const auto reader = EngineOn(b);
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  REQUIRE(writer->StoreAll(RemotePrompt(*writer, 0)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*a.daemon) == kChunks; }));
  CHECK(HitsOf(*reader, RemotePrompt(*reader, 0)) == 0);
}

TEST_CASE("Row 16: a remote store that is down costs nothing but what is there") {
  const TempDir shared;
  RedisServer redis;
  const RemoteNode node(StoreOf(redis), SecretIn(shared));
  const auto engine = EngineOn(node);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 0)).status == KVIST_OK);
  redis.process().Kill();
  // Local hits are served, what isn't here is a miss, soon without asking, and stores go on.
  std::string wrong;
  CHECK(engine->LoadAll(RemotePrompt(*engine, 0), &wrong) == kChunks);
  CHECK(wrong.empty());
  const auto down = std::chrono::steady_clock::now();
  uint32_t asked = 0;
  REQUIRE(Eventually([&] {
    ++asked;
    CHECK(HitsOf(*engine, RemotePrompt(*engine, 1000 + asked)) == 0);
    return !Reaches(*node.daemon);
  }));
  std::printf("row 16: breaker open after %.0f ms and %u lookups\n", MillisSince(down), asked);
  CHECK(MillisSince(down) < kSlack * 5000);
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 1)).status == KVIST_OK);
  CHECK(engine->LoadAll(RemotePrompt(*engine, 1), &wrong) == kChunks);
  CHECK(wrong.empty());
  // It comes back, empty, and is used again.
  redis.Start();
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  const uint64_t before = Written(*node.daemon);
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 2)).status == KVIST_OK);
  CHECK(Eventually([&] { return Written(*node.daemon) >= before + kChunks; }));
}

TEST_CASE("Row 17, 18: a remote store that hangs costs lookups their wait at most, and nobody a thread") {
  const TempDir shared;
  RedisServer redis;
  const RemoteNode node(StoreOf(redis), SecretIn(shared),
                        {"remote.lookup_wait=100ms", "remote.read_timeout=1s", "remote.write_timeout=1s"});
  const auto engine = EngineOn(node);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 0)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*node.daemon) == kChunks; }));
  redis.process().Signal(SIGSTOP);
  // The first ones wait for it; then it is left alone, and asked again now and then.
  constexpr int kLookups = 40;
  const ptrdiff_t threads = ThreadsOf(*node.daemon);
  const Waits waits = LookUpInVain(*engine, kLookups, 100);
  // All are in the latency, also those that were answered when the store had not.
  const nlohmann::json status = StatusOf(*node.daemon);
  const auto& rows = status["latencies"];
  const auto lookup = std::find_if(rows.begin(), rows.end(), [](const auto& row) { return row["name"] == "lookup"; });
  REQUIRE(lookup != rows.end());
  CHECK((*lookup)["count"] == status["lookups"]);
  CHECK((*lookup)["seconds"] > 0.05);
  // Writes that hang give their slots back, and what is here is served.
  for (uint32_t p = 1; p < 6; ++p) REQUIRE(engine->StoreAll(RemotePrompt(*engine, p)).status == KVIST_OK);
  std::string wrong;
  for (uint32_t p = 0; p < 6; ++p) CHECK(engine->LoadAll(RemotePrompt(*engine, p), &wrong) == kChunks);
  CHECK(wrong.empty());
  REQUIRE(Eventually([&] { return !Reaches(*node.daemon); }));
  REQUIRE(Eventually([&] { return StatusOf(*node.daemon)["remote"]["bytes_on_their_way"] == 0; }));
  CHECK(Eventually([&] { return ThreadsOf(*node.daemon) <= threads + 2; }));  // the admin API's come and go
  std::printf(
      "row 17, 18: lookups took %.1f ms on average, %.0f at most (remote.lookup_wait 100); bytes bound in the end: 0\n",
      waits.sum / kLookups, waits.longest);
  redis.process().Signal(SIGCONT);
  CHECK(Eventually([&] { return Reaches(*node.daemon); }));
}

TEST_CASE(
    "Row 17: a remote store whose answers come five seconds late, or a byte a second, costs lookups their wait at most") {
  const TempDir shared;
  const RedisServer redis;
  SlowProxy slow(redis.socket());
  const RemoteNode node("redis://" + slow.path(), SecretIn(shared),
                        {"remote.lookup_wait=100ms", "remote.read_timeout=1s", "remote.write_timeout=1s"});
  const RemoteNode other(StoreOf(redis), SecretIn(shared));
  const auto engine = EngineOn(node);
  const auto writer = EngineOn(other);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon) && Reaches(*other.daemon); }));
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 0)).status == KVIST_OK);
  REQUIRE(writer->StoreAll(RemotePrompt(*writer, 1)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*node.daemon) == kChunks && Written(*other.daemon) == kChunks; }));
  const ptrdiff_t threads = ThreadsOf(*node.daemon);
  const bool late = GENERATE(true, false);
  if (late) slow.Delay(std::chrono::seconds(5));
  if (!late) slow.BytesPerSecond(1);
  constexpr int kLookups = 40;
  const Waits waits = LookUpInVain(*engine, kLookups, 100);
  CHECK(HitsOf(*engine, RemotePrompt(*engine, 1)) == 0);
  for (uint32_t p = 2; p < 5; ++p) REQUIRE(engine->StoreAll(RemotePrompt(*engine, p)).status == KVIST_OK);
  std::string wrong;
  for (const uint32_t p : {0, 2, 3, 4}) CHECK(engine->LoadAll(RemotePrompt(*engine, p), &wrong) == kChunks);
  CHECK(wrong.empty());
  CHECK(Eventually([&] { return NothingIsBound(*node.daemon); }));
  CHECK(Eventually([&] { return ThreadsOf(*node.daemon) <= threads + 2; }));  // the admin API's come and go
  std::printf("row 17, %s: lookups took %.1f ms on average, %.0f at most, %d of %d waited\n",
              late ? "five seconds late" : "a byte a second", waits.sum / kLookups, waits.longest, waits.waited, kLookups);
  slow.Delay({});
  slow.BytesPerSecond(0);
  CHECK(Eventually([&] { return HitsOf(*engine, RemotePrompt(*engine, 1)) == kChunks; }));
}

TEST_CASE(
    "Row 17, 18: a read of a prompt that was found, from a store that brings it too slowly or not at all, ends in its "
    "time") {
  const TempDir shared;
  RedisServer redis;
  SlowProxy slow(redis.socket());
  const RemoteNode node("redis://" + slow.path(), SecretIn(shared), {"remote.read_timeout=1s", "remote.write_timeout=1s"});
  const RemoteNode other(StoreOf(redis), SecretIn(shared));
  const auto engine = EngineOn(node);
  const auto writer = EngineOn(other);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon) && Reaches(*other.daemon); }));
  for (uint32_t p = 0; p < 2; ++p) REQUIRE(writer->StoreAll(RemotePrompt(*writer, p)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*other.daemon) == 2 * kChunks; }));
  const ptrdiff_t threads = ThreadsOf(*node.daemon);
  // Answers to questions pass in time, a chunk of 24 KiB takes two seconds and a half, and there are twelve.
  slow.BytesPerSecond(10'000);
  for (int tries = 0; tries < 2; ++tries) {
    const auto began = std::chrono::steady_clock::now();
    std::string wrong;
    CHECK(engine->LoadAll(RemotePrompt(*engine, 0), &wrong) < kChunks);
    CHECK(wrong.empty());
    CHECK(MillisSince(began) < kSlack * 4000);
  }
  CHECK(Eventually([&] { return NothingIsBound(*node.daemon); }));
  CHECK(Eventually([&] { return ThreadsOf(*node.daemon) <= threads + 2; }));  // the admin API's come and go
  const nlohmann::json remote = StatusOf(*node.daemon)["remote"];
  CHECK(remote["chunks_found"] > 0);
  CHECK(remote["reads_failed"] > 0);
  slow.BytesPerSecond(0);
  std::string wrong;
  CHECK(Eventually([&] { return engine->LoadAll(RemotePrompt(*engine, 0), &wrong) == kChunks; }));
  CHECK(Eventually([&] { return engine->LoadAll(RemotePrompt(*engine, 1), &wrong) == kChunks; }));
  CHECK(wrong.empty());
}

TEST_CASE(
    "a prompt that is cleared while the remote store is away is gone when that is back, also after kill -9 between them") {
  const TempDir shared;
  RedisServer redis;
  const RemoteNode node(StoreOf(redis), SecretIn(shared), {"remote.read_timeout=1s", "remote.write_timeout=1s"});
  auto engine = EngineOn(node);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  for (uint32_t p = 0; p < 2; ++p) REQUIRE(engine->StoreAll(RemotePrompt(*engine, p)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*node.daemon) == 2 * kChunks; }));
  redis.process().Signal(SIGSTOP);
  // Until it isn't even asked: what were on its way to it would still come there.
  uint32_t asked = 0;
  REQUIRE(Eventually([&] {
    CHECK(HitsOf(*engine, RemotePrompt(*engine, 1000 + ++asked)) == 0);
    return !Reaches(*node.daemon);
  }));
  const std::string tokens = TokensOf(node.dir, 0);
  const auto job = [&] { return LastJob(node, "clear-prompt"); };
  CHECK(CtlSays(*node.daemon, {"clear", "--tokens", tokens, "--yes", "--timeout", "3s"}).first != 0);
  REQUIRE(Eventually([&] { return job().is_object() && job()["trouble"] != ""; }));
  CHECK(job()["state"] == "running");
  CHECK(HitsOf(*engine, RemotePrompt(*engine, 0)) == 0);
  // Others don't wait behind it.
  CHECK(CtlSays(*node.daemon, {"clear", "--tier", "dram", "--yes"}).first == 0);
  if (GENERATE(false, true)) {
    engine.reset();
    node.daemon->Kill();
    node.daemon->Start();
    engine = EngineOn(node);
    CHECK(job()["state"] == "running");
    CHECK(job()["resumed"] == true);
  }
  redis.process().Signal(SIGCONT);
  REQUIRE(Eventually([&] { return job()["state"] != "running"; }));
  CHECK(job()["state"] == "done");
  CHECK(job()["trouble"] == "");
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  REQUIRE(Eventually([&] { return HitsOf(*engine, RemotePrompt(*engine, 1)) == kChunks; }));  // it is asked again
  CHECK(HitsOf(*engine, RemotePrompt(*engine, 0)) == 0);
}

TEST_CASE("a compress in a remote store that hangs goes on when that is back, also after kill -9 between them") {
  const TempDir shared;
  RedisServer redis;
  const RemoteNode node(StoreOf(redis), SecretIn(shared), {"remote.read_timeout=1s", "remote.write_timeout=1s"});
  auto engine = EngineOn(node, 1, /*half_empty=*/true);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  REQUIRE(engine->StoreAll(RemotePrompt(*engine, 0)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*node.daemon) == kChunks; }));
  redis.process().Signal(SIGSTOP);
  const auto job = [&] { return LastJob(node, "compress"); };
  CHECK(CtlSays(*node.daemon, {"compress", "--tokens", TokensOf(node.dir, 0), "--tier", "remote:shared", "--method",
                               "lossless", "--timeout", "2s"})
            .first != 0);
  REQUIRE(Eventually([&] { return job().is_object() && job()["trouble"] != ""; }));
  CHECK(job()["state"] == "running");
  const bool killed = GENERATE(false, true);
  if (killed) {
    engine.reset();
    node.daemon->Kill();
    node.daemon->Start();
  }
  redis.process().Signal(SIGCONT);
  REQUIRE(Eventually([&] { return job()["state"] != "running"; }));
  INFO(job().dump());
  CHECK(job()["state"] == "done");
  CHECK(job()["trouble"] == "");
  CHECK(job()["resumed"] == killed);
  CHECK(job()["chunks"] == kChunks);
  CHECK(10 * job()["bytes_after"].get<uint64_t>() < 8 * job()["bytes"].get<uint64_t>());
  // The pool of a new kvistd is empty, so this is what lies there.
  std::string wrong;
  engine = EngineOn(node, 1, /*half_empty=*/true);
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  CHECK(Eventually([&] { return engine->LoadAll(RemotePrompt(*engine, 0), &wrong) == kChunks; }));
  CHECK(wrong.empty());
}

TEST_CASE("An operator's lookup finds what is here while the remote store hangs, in each space") {
  const TempDir shared;
  RedisServer redis;
  const RemoteNode node(StoreOf(redis), SecretIn(shared), {"remote.lookup_wait=10s", "remote.read_timeout=10s"});
  FakeEngine::Options options = FakeEngine::On(node.daemon->socket());
  constexpr uint32_t kSpaces = 4;
  std::vector<std::unique_ptr<FakeEngine>> engines;
  for (uint32_t i = 0; i < kSpaces; ++i) {
    options.instance = options.model = "model-" + std::to_string(i);
    engines.push_back(std::make_unique<FakeEngine>(options));
    REQUIRE(engines.back()->status.ok());
  }
  REQUIRE(Eventually([&] { return Reaches(*node.daemon); }));
  for (const auto& engine : engines) REQUIRE(engine->StoreAll(RemotePrompt(*engine, 0)).status == KVIST_OK);
  const std::string file = shared / "tokens";
  {
    std::ofstream tokens(file);
    for (const uint32_t token : FakeEngine::Tokens(0, kChunks + 1)) tokens << token << " ";
  }
  redis.process().Signal(SIGSTOP);
  REQUIRE(Reaches(*node.daemon));
  const auto began = std::chrono::steady_clock::now();
  const nlohmann::json found = Ctl(*node.daemon, {"--timeout", "5s", "lookup", "--tokens", file})["spaces"];
  std::printf("a lookup of %u spaces by a store that hangs: %.0f ms\n", kSpaces, MillisSince(began));
  REQUIRE(found.size() == kSpaces);
  for (const auto& space : found) CHECK(space["chunks"] == kChunks);
  redis.process().Signal(SIGCONT);
}

TEST_CASE("Row 19: a remote store that lies is a miss, and never a wrong byte") {
  const TempDir shared, folder;
  const std::vector<std::string> more{GENERATE(as<std::string>(), "remote.encrypt=false", "remote.encrypt=true")};
  const RemoteNode a("file://" + folder.path(), SecretIn(shared), more),
      b("file://" + folder.path(), SecretIn(shared), more);
  const auto writer = EngineOn(a);
  const auto reader = EngineOn(b);
  REQUIRE(Eventually([&] { return Reaches(*a.daemon) && Reaches(*b.daemon); }));
  constexpr uint32_t kPrompts = 6;
  for (uint32_t p = 0; p < kPrompts; ++p) REQUIRE(writer->StoreAll(RemotePrompt(*writer, p)).status == KVIST_OK);
  REQUIRE(Eventually([&] { return Written(*a.daemon) == kPrompts * kChunks; }));
  // Every third object is flipped, cut off, exchanged with another one, or emptied.
  std::vector<std::string> objects;
  for (const auto& [path, bytes] : FilesUnder(folder.path())) objects.push_back(path);
  REQUIRE(objects.size() >= kPrompts * kChunks);
  uint32_t lies = 0;
  for (size_t i = 0; i + 1 < objects.size(); i += 3, ++lies) {
    switch (lies % 4) {
      case 0: {
        std::fstream file(objects[i], std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(5000);
        const int was = file.get();
        file.seekp(5000);
        file.put(static_cast<char>(was ^ 4));
        break;
      }
      case 1: std::filesystem::resize_file(objects[i], 7000); break;
      case 2: {
        std::filesystem::rename(objects[i], objects[i] + ".x");
        std::filesystem::rename(objects[i + 1], objects[i]);
        std::filesystem::rename(objects[i] + ".x", objects[i + 1]);
        break;
      }
      default: std::filesystem::resize_file(objects[i], 0); break;
    }
  }
  uint32_t loaded = 0, wrong_chunks = 0, tries = 0;
  for (uint32_t p = 0; p < kPrompts; ++p) {
    // A load that fails is followed by a shorter hit: what was bad isn't there any more.
    for (uint32_t t = 0; t < 2 * kChunks; ++t, ++tries) {
      std::string wrong;
      const uint32_t hit = reader->LoadAll(RemotePrompt(*reader, p), &wrong);
      wrong_chunks += !wrong.empty();
      if (hit == 0 && HitsOf(*reader, RemotePrompt(*reader, p)) > 0) continue;
      loaded += hit;
      break;
    }
  }
  CHECK(wrong_chunks == 0);
  const nlohmann::json status = StatusOf(*b.daemon)["remote"];
  CHECK(status["chunks_corrupt"].get<uint64_t>() > 0);
  // What an engine recomputed is stored again, and is right for all.
  for (uint32_t p = 0; p < kPrompts; ++p) REQUIRE(reader->StoreAll(RemotePrompt(*reader, p)).status == KVIST_OK);
  for (uint32_t p = 0; p < kPrompts; ++p) {
    std::string wrong;
    CHECK(reader->LoadAll(RemotePrompt(*reader, p), &wrong) == kChunks);
    CHECK(wrong.empty());
  }
  std::printf("row 19: %u objects of %zu were lies; %u of %u chunks loaded all the same, wrong chunks: %u\n", lies,
              objects.size(), loaded, kPrompts * kChunks, wrong_chunks);
}
