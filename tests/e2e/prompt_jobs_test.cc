// What an operator does with one prompt of a real kvistd with a tier on disk: clear it for good, move it, have it read beforehand.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 16;  // of a prompt
constexpr uint32_t kTokens = kChunks * FakeEngine::kChunkTokens;
constexpr int64_t kFlushTime = 30'000'000;

// A pool of 10 prompts; a disk of some 700.
std::vector<std::string> Settings(const std::string& lease_share = "0.9") {
  return {"ssd.enabled=true",     "ssd.capacity=512MiB",  "pool.bytes=6MiB",
          "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=" + lease_share};
}

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

void StoreDurably(const DaemonProcess& daemon, uint32_t prompts, bool half_empty = false) {
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.half_empty = half_empty;
  FakeEngine engine(options);
  REQUIRE(engine.status.ok());
  uint32_t durable = 0;
  for (uint32_t p = 0; p < prompts; ++p) {  // none of them is dropped for the next before it is written
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(kFlushTime, &durable).ok());
  }
  CHECK(durable >= prompts * kChunks);
}

std::string TokensOf(const TempDir& dir, uint32_t p) {
  const std::string path = dir / ("tokens-" + std::to_string(p));
  std::ofstream file(path);
  for (const uint32_t token : FakeEngine::Tokens(p * 1000, kChunks)) file << token << " ";
  return path;
}

struct Where {
  uint64_t dram = 0, ssd = 0;  // tokens
  bool operator==(const Where&) const = default;
};
Where WhereIs(const DaemonProcess& daemon, const std::string& tokens) {
  const nlohmann::json found = Ctl(daemon, {"lookup", "--tokens", tokens}).at("spaces").at(0);
  return {found.at("dram_tokens"), found.at("ssd_tokens")};
}

// The one job that a command has begun and waited for.
nlohmann::json JobOf(const DaemonProcess& daemon, std::vector<std::string> arguments) {
  const nlohmann::json reply = Ctl(daemon, arguments);
  INFO(reply.dump());
  REQUIRE(reply.at("jobs").size() == 1);
  CHECK(reply["jobs"][0].at("state") == "done");
  return reply["jobs"][0];
}

void Restart(DaemonProcess& daemon) {
  daemon.Kill();
  daemon.Start();
  REQUIRE(HasRecovered(daemon));
}

bool LoadsWell(FakeEngine& engine, uint32_t p) {
  std::string wrong;
  const uint32_t chunks = engine.LoadAll(Prompt(engine, p), &wrong);
  INFO(wrong);
  CHECK(wrong.empty());
  return chunks == kChunks && wrong.empty();
}

}  // namespace

TEST_CASE("clear_tokens: a prompt that was cleared is gone, also after kill -9, and others are there") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  StoreDurably(daemon, 3);
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    // It goes on from the first two chunks of prompt 1.
    REQUIRE(engine.StoreAll(engine.Keys(1007, kChunks)).status == KVIST_OK);
  }
  const std::string one = TokensOf(dir, 1), two = TokensOf(dir, 2);
  CHECK(Ctl(daemon, {"pins", "add", "--tokens", one})["pins"].size() == 1);

  CHECK(Ctl(daemon, {"clear", "--tokens", one, "--dry-run"})["spaces"][0]["chunks"] == kChunks);
  const auto [unasked, refusal] = CtlSays(daemon, {"clear", "--tokens", one});
  CHECK(unasked == 2);
  CHECK_THAT(refusal, Catch::Contains("--yes"));
  CHECK(WhereIs(daemon, one) == Where{kTokens, 0});

  const nlohmann::json job = JobOf(daemon, {"clear", "--tokens", one, "--yes", "--request", "case-17"});
  CHECK(job["kind"] == "clear-prompt");
  CHECK(job["chunks"] == 2 * kChunks - 2);  // with what hung on it
  CHECK(WhereIs(daemon, one) == Where{});
  CHECK(WhereIs(daemon, two) == Where{kTokens, 0});
  CHECK(Ctl(daemon, {"pins"})["pins"].empty());
  CHECK(JobOf(daemon, {"clear", "--tokens", one, "--yes", "--request", "case-17"})["id"] == job["id"]);

  Restart(daemon);
  CHECK(WhereIs(daemon, one) == Where{});
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    CHECK(engine.scheduler().Lookup(engine.Keys(1007, kChunks), 0).chunks == 0);
    CHECK(LoadsWell(engine, 0));
    CHECK(LoadsWell(engine, 2));
  }

  // What only lies on disk goes as well, and what is stored anew stays.
  REQUIRE(JobOf(daemon, {"move", "--tokens", two, "--from", "dram", "--to", "ssd"})["not_moved"] == 0);
  CHECK(WhereIs(daemon, two) == Where{0, kTokens});
  CHECK(JobOf(daemon, {"clear", "--tokens", two, "--yes"})["chunks"] == kChunks);
  StoreDurably(daemon, 2);
  Restart(daemon);
  CHECK(WhereIs(daemon, two) == Where{});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  CHECK(LoadsWell(engine, 0));
  CHECK(LoadsWell(engine, 1));
  CHECK(JobOf(daemon, {"clear", "--tokens", two, "--yes"})["chunks"] == 0);
}

TEST_CASE("clear_tokens of one tier: the other keeps it, and a restart doesn't find what was there") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  StoreDurably(daemon, 3);
  const std::string zero = TokensOf(dir, 0), one = TokensOf(dir, 1), two = TokensOf(dir, 2);
  // Those in DRAM stay; what only lies on disk is gone.
  REQUIRE(JobOf(daemon, {"move", "--tokens", two, "--from", "dram", "--to", "ssd"})["not_moved"] == 0);
  for (const std::string& prompt : {one, two}) {
    const nlohmann::json job = JobOf(daemon, {"clear", "--tokens", prompt, "--tier", "ssd", "--yes"});
    CHECK(job["kind"] == "clear-prompt");
    CHECK(job["tier"] == "ssd");
    CHECK(job["chunks"] == kChunks);
  }
  CHECK(WhereIs(daemon, one) == Where{kTokens, 0});
  CHECK(WhereIs(daemon, two) == Where{});
  Restart(daemon);
  CHECK(WhereIs(daemon, zero) == Where{0, kTokens});
  CHECK(WhereIs(daemon, one) == Where{});
  CHECK(WhereIs(daemon, two) == Where{});
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    CHECK(LoadsWell(engine, 0));
  }
  CHECK(JobOf(daemon, {"clear", "--tokens", zero, "--tier", "dram", "--yes"})["chunks"] == kChunks);
  CHECK(WhereIs(daemon, zero) == Where{0, kTokens});

  // A whole space, and all.
  StoreDurably(daemon, 2);
  const std::string digest = Ctl(daemon, {"status"})["spaces"][0]["digest"];
  CHECK(Ctl(daemon, {"clear", "--space", digest, "--tier", "ssd", "--yes"})["chunks"] == 2 * kChunks);
  CHECK(WhereIs(daemon, zero) == Where{});
  CHECK(WhereIs(daemon, one) == Where{kTokens, 0});
  CHECK(Ctl(daemon, {"clear", "--tier", "dram", "--yes"})["chunks"] == kChunks);
  CHECK(WhereIs(daemon, one) == Where{});
  Restart(daemon);
  CHECK(WhereIs(daemon, one) == Where{});

  CHECK_THAT(CtlSays(daemon, {"clear", "--tier", "tape", "--yes"}).second, Catch::Contains("tier: \"tape\" is no tier"));
  CHECK_THAT(CtlSays(daemon, {"clear", "--tier", "remote:shared", "--yes"}).second,
             Catch::Contains("tier: this kvistd has no remote tier"));
}

TEST_CASE("move_tokens: a prompt goes to the disk and comes back, and what is in use stays") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  StoreDurably(daemon, 2);
  const std::string zero = TokensOf(dir, 0), one = TokensOf(dir, 1);

  nlohmann::json job = JobOf(daemon, {"move", "--tokens", one, "--from", "dram", "--to", "ssd"});
  CHECK(job["kind"] == "move");
  CHECK(job["chunks"] == kChunks);
  CHECK(job["bytes"] > kChunks * 4096);
  CHECK(WhereIs(daemon, one) == Where{0, kTokens});
  CHECK(WhereIs(daemon, zero) == Where{kTokens, 0});
  job = JobOf(daemon, {"move", "--tokens", one, "--from", "dram", "--to", "ssd"});
  CHECK(job["chunks"] == 0);
  CHECK(job["already_there"] == kChunks);

  job = JobOf(daemon, {"move", "--tokens", one, "--from", "ssd", "--to", "dram", "--keep-source"});
  CHECK(job["chunks"] == kChunks);
  CHECK(WhereIs(daemon, one) == Where{kTokens, 0});
  Restart(daemon);
  CHECK(WhereIs(daemon, one).ssd + WhereIs(daemon, one).dram == kTokens);
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    CHECK(LoadsWell(engine, 1));
  }
  job = JobOf(daemon, {"move", "--tokens", one, "--from", "ssd", "--to", "dram"});
  CHECK(job["chunks"] == kChunks);
  CHECK(WhereIs(daemon, one) == Where{kTokens, 0});

  // A pin keeps it in DRAM.
  REQUIRE(Ctl(daemon, {"pins", "add", "--tokens", zero})["pins"].size() == 1);
  REQUIRE(JobOf(daemon, {"prefetch", "--tokens", zero})["not_moved"] == 0);
  job = JobOf(daemon, {"move", "--tokens", zero, "--from", "dram", "--to", "ssd"});
  CHECK(job["chunks"] == 0);
  CHECK(job["not_moved"] == kChunks);
  CHECK(WhereIs(daemon, zero) == Where{kTokens, 0});

  struct Wrong {
    std::vector<std::string> arguments;
    const char* why;
  };
  for (const Wrong& wrong :
       std::vector<Wrong>{{{"move", "--from", "dram", "--to", "tape"}, "to: \"tape\" is no tier"},
                          {{"move", "--from", "ssd", "--to", "ssd"}, "to: \"ssd\" is where it comes from"},
                          {{"move", "--from", "remote:s3", "--to", "dram"}, "from: this kvistd has no remote tier"},
                          {{"move", "--from", "ssd", "--to", "dram", "--node", "node-b"}, "node: \"node-b\""},
                          {{"prefetch", "--from", "dram"}, "from: dram is where a prefetch goes to"},
                          {{"prefetch", "--model", "none such"}, "no space fits"}}) {
    std::vector<std::string> arguments = wrong.arguments;
    arguments.insert(arguments.end(), {"--tokens", one});
    const auto [code, said] = CtlSays(daemon, arguments);
    CHECK(code == 1);
    CHECK_THAT(said, Catch::Contains(wrong.why));
  }
}

TEST_CASE("move_tokens: a prompt comes back from a store beyond the node, to DRAM or disk, and the store has it no more") {
  const TempDir dir, shared;
  std::vector<std::string> settings = Settings();
  settings.push_back("remote.store=file://" + shared.path());
  DaemonProcess daemon(dir.path(), settings);
  REQUIRE(HasRecovered(daemon));
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["reachable"] == true; }));
  StoreDurably(daemon, 1);
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["chunks_written"] == kChunks; }));
  const std::string zero = TokensOf(dir, 0);
  const auto there = [&] { return Ctl(daemon, {"lookup", "--tokens", zero}).at("spaces").at(0).at("remote_tokens"); };
  const auto only_there = [&] {
    for (const char* tier : {"ssd", "dram"}) JobOf(daemon, {"clear", "--tokens", zero, "--tier", tier, "--yes"});
    CHECK(WhereIs(daemon, zero) == Where{});
    CHECK(Eventually([&] { return there() == kTokens; }));  // a question waits for the store for half a second
  };
  // The controller's API, which each kvistd has, names the store.
  const auto tiers_there = [&] {
    std::string out;
    REQUIRE(kvist::test::RunProgram({kvist::test::BinDir() + "/kvistctl", "--controller", "unix:" + daemon.admin_socket(),
                                     "-o", "json", "lookup", "--tokens", zero},
                                    &out) == 0);
    return nlohmann::json::parse(out).at("spaces").at(0).at("tiers");
  };
  only_there();
  REQUIRE(Eventually([&] { return tiers_there().size() == 1; }));
  CHECK(tiers_there()[0]["tier"] == "remote:shared");
  CHECK(tiers_there()[0]["tokens"] == kTokens);
  nlohmann::json job = JobOf(daemon, {"move", "--tokens", zero, "--from", "remote:shared", "--to", "dram", "--keep-source"});
  CHECK(job["chunks"] == kChunks);
  CHECK(WhereIs(daemon, zero) == Where{kTokens, 0});
  only_there();
  CHECK(JobOf(daemon, {"prefetch", "--tokens", zero, "--from", "remote:shared"})["chunks"] == kChunks);
  CHECK(WhereIs(daemon, zero) == Where{kTokens, 0});
  only_there();
  job = JobOf(daemon, {"move", "--tokens", zero, "--from", "remote:shared", "--to", "ssd"});
  CHECK(job["chunks"] == kChunks);
  CHECK(job["not_moved"] == 0);
  CHECK(WhereIs(daemon, zero) == Where{0, kTokens});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  CHECK(LoadsWell(engine, 0));
  for (const char* tier : {"ssd", "dram"}) JobOf(daemon, {"clear", "--tokens", zero, "--tier", tier, "--yes"});
  CHECK(there() == 0);
}

TEST_CASE("move_tokens: without a tier on disk nothing can be moved to or from it") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=4MiB", "ssd.enabled=false"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.StoreAll(Prompt(engine, 1)).status == KVIST_OK);
  const std::string one = TokensOf(dir, 1);
  CHECK_THAT(CtlSays(daemon, {"move", "--tokens", one, "--from", "dram", "--to", "ssd"}).second,
             Catch::Contains("to: this kvistd has no SSD tier"));
  CHECK_THAT(CtlSays(daemon, {"prefetch", "--tokens", one}).second, Catch::Contains("from: this kvistd has no SSD tier"));
  CHECK(JobOf(daemon, {"clear", "--tokens", one, "--yes"})["chunks"] == kChunks);
  CHECK(WhereIs(daemon, one) == Where{});
}

TEST_CASE("compress_tokens: what lies on disk takes less there, is loaded as it was, and comes back after kill -9") {
  const TempDir dir;
  auto settings = Settings();
  const bool verify = GENERATE(false, true);
  if (verify) settings.emplace_back("pool.verify=always");
  DaemonProcess daemon(dir.path(), settings);
  StoreDurably(daemon, 2, /*half_empty=*/true);
  const std::string one = TokensOf(dir, 1);
  REQUIRE(JobOf(daemon, {"move", "--tokens", one, "--from", "dram", "--to", "ssd"})["not_moved"] == 0);
  CHECK(Ctl(daemon, {"compress", "--tokens", one, "--tier", "ssd", "--method", "lossless", "--dry-run"})["spaces"].size() ==
        1);

  const nlohmann::json job = JobOf(daemon, {"compress", "--tokens", one, "--tier", "ssd", "--method", "lossless"});
  INFO(job.dump());
  CHECK(job["kind"] == "compress");
  CHECK(job["chunks"] == kChunks);
  CHECK(job["not_moved"] == 0);
  CHECK(job["relative_error"] == 0);
  CHECK(10 * job["bytes_after"].get<uint64_t>() < 8 * job["bytes"].get<uint64_t>());
  CHECK(WhereIs(daemon, one) == Where{0, kTokens});  // it has only passed through DRAM
  const nlohmann::json encoded = Ctl(daemon, {"ssd"})["encoded"];
  CHECK(encoded["chunks"] == kChunks);
  CHECK(encoded["bytes"] == job["bytes_after"]);
  CHECK(encoded["slot_bytes"] == job["bytes"]);
  CHECK(JobOf(daemon, {"compress", "--tokens", one, "--tier", "ssd", "--method", "lossless"})["already_there"] == kChunks);
  const auto [status, why] = CtlSays(daemon, {"compress", "--tokens", one, "--tier", "ssd", "--method", "int8"});
  CHECK(status == 1);
  CHECK_THAT(why, Catch::Contains("int8 takes KV of bf16"));

  Restart(daemon);
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.half_empty = true;
  options.by_layer = verify;
  FakeEngine engine(options);
  CHECK(LoadsWell(engine, 1));
  CHECK(LoadsWell(engine, 0));
  CHECK(Ctl(daemon, {"ssd"})["encoded"] == encoded);
  const nlohmann::json back = JobOf(daemon, {"decompress", "--tokens", one, "--tier", "ssd"});
  CHECK(back["chunks"] == kChunks);
  CHECK(back["bytes"] == job["bytes_after"]);
  CHECK(back["bytes_after"] == job["bytes"]);
  CHECK(Ctl(daemon, {"ssd"})["encoded"]["chunks"] == 0);
  Restart(daemon);
  FakeEngine again(options);
  CHECK(LoadsWell(again, 1));
}

TEST_CASE("compress_tokens: what lies on disk encoded goes beyond the node encoded, and comes back as it was") {
  const TempDir dir, shared;
  auto settings = Settings();
  settings.insert(settings.end(), {"remote.store=file://" + shared.path(), "remote.lookup_wait=2s"});
  DaemonProcess daemon(dir.path(), settings);
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["reachable"] == true; }));
  StoreDurably(daemon, 1, /*half_empty=*/true);
  const std::string one = TokensOf(dir, 0);
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["chunks_written"] == kChunks; }));
  const uint64_t before = StatusOf(daemon)["remote"]["bytes_written"];
  REQUIRE(JobOf(daemon, {"compress", "--tokens", one, "--tier", "ssd", "--method", "lossless"})["chunks"] == kChunks);
  // What the store took when it was stored goes first.
  for (const char* tier : {"remote:shared", "dram"}) JobOf(daemon, {"clear", "--tokens", one, "--tier", tier, "--yes"});
  const nlohmann::json moved = JobOf(daemon, {"move", "--tokens", one, "--from", "ssd", "--to", "remote:shared"});
  INFO(moved.dump());
  CHECK(moved["chunks"] == kChunks);
  CHECK(10 * (StatusOf(daemon)["remote"]["bytes_written"].get<uint64_t>() - before) < 8 * before);
  JobOf(daemon, {"clear", "--tokens", one, "--tier", "dram", "--yes"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.half_empty = true;
  FakeEngine engine(options);
  CHECK(LoadsWell(engine, 0));
}

TEST_CASE("compress_tokens: KV that gets no smaller stays on disk as it is") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  StoreDurably(daemon, 1);
  const nlohmann::json job =
      JobOf(daemon, {"compress", "--tokens", TokensOf(dir, 0), "--tier", "ssd", "--method", "lossless"});
  CHECK(job["chunks"] == 0);
  CHECK(job["already_there"] == kChunks);
  Restart(daemon);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  CHECK(LoadsWell(engine, 0));
}

TEST_CASE("prefetch_tokens: what lies on disk is in DRAM before an engine asks, as far as a job may take room") {
  const TempDir dir;
  constexpr uint32_t kPrompts = 20;  // twice the pool
  {
    DaemonProcess daemon(dir.path(), Settings());
    StoreDurably(daemon, kPrompts);
    daemon.Kill();
  }
  const std::string three = TokensOf(dir, 3);
  SECTION("all of it") {
    DaemonProcess daemon(dir.path(), Settings());
    REQUIRE(HasRecovered(daemon));
    REQUIRE(WhereIs(daemon, three).dram + WhereIs(daemon, three).ssd == kTokens);
    const nlohmann::json job = JobOf(daemon, {"prefetch", "--tokens", three});
    CHECK(job["kind"] == "prefetch");
    CHECK(job["chunks"].get<uint64_t>() + job["already_there"].get<uint64_t>() == kChunks);
    CHECK(job["not_moved"] == 0);
    CHECK(WhereIs(daemon, three) == Where{kTokens, 0});
    CHECK(JobOf(daemon, {"prefetch", "--tokens", three})["already_there"] == kChunks);
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    CHECK(LoadsWell(engine, 3));
    // Prompts that don't fit together: each is there when its job has ended.
    for (uint32_t p = 0; p < kPrompts; ++p) {
      const std::string tokens = TokensOf(dir, p);
      CHECK(JobOf(daemon, {"prefetch", "--tokens", tokens})["not_moved"] == 0);
      CHECK(WhereIs(daemon, tokens) == Where{kTokens, 0});
    }
  }
  SECTION("its beginning") {
    DaemonProcess daemon(dir.path(), Settings("0.05"));
    REQUIRE(HasRecovered(daemon));
    const Where before = WhereIs(daemon, three);
    REQUIRE(before.dram + before.ssd == kTokens);
    const nlohmann::json job = JobOf(daemon, {"prefetch", "--tokens", three});
    CHECK(job["not_moved"] > 0);
    CHECK(WhereIs(daemon, three).ssd == job["not_moved"].get<uint64_t>() * FakeEngine::kChunkTokens);
  }
}
