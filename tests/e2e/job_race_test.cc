// Row 39 of the fault matrix, with tiers: operators move, prefetch, clear, pin, encode and cancel beside what engines do, while a small pool
// evicts to a disk and a store beyond the node. No load brings a wrong byte, what was cleared never comes back, every job ends, and nothing
// leaks.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "proto/node.grpc.pb.h"
#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/engine_plays.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

namespace api = kvist::node::v1;
using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::kPlays;
using kvist::test::kSanitized;
using kvist::test::Player;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t kEngines = 4, kEngineThreads = 32, kOperators = 8;
constexpr std::chrono::seconds kCallTime(20);
constexpr uint64_t kHeaders = 8 * 4096;  // of the disk's segments

// One operator, in a thread of their own, who has an engine's pages, too, to check what an operator's wish has done.
class Operator {
 public:
  Operator(const std::string& admin_socket, FakeEngine* engine, uint32_t number, uint32_t seed)
      : stub_(api::Node::NewStub(grpc::CreateChannel("unix:" + admin_socket, grpc::InsecureChannelCredentials()))),
        number_(number),
        player{*engine, (kEngineThreads / kEngines + number / kEngines) * Player::kPlayedChunks, std::mt19937(seed)} {}

  // Does one thing: each at first, each operator beginning elsewhere, and then at random.
  void Act() {
    const uint32_t act = acts_ < 10 ? (number_ + acts_) % 10 : Any(10);
    ++acts_;
    switch (act) {
      case 0:
      case 1: return Follow(Move(AnyTokens()));
      case 2: return Follow(Prefetch(AnyTokens()));
      case 3: return Follow(Recode(AnyTokens()));
      case 4: return Follow(Any(2) == 0 ? ClearPrompt(AnyTokens()) : ClearTier(AnyTokens()));
      case 5: return Any(8) == 0 ? ClearSpace() : Follow(Move(AnyTokens()));
      case 6: return Pin(AnyTokens());
      case 7: return Unpin();
      case 8: return Any(8) == 0 ? Cancel() : Follow(Prefetch(AnyTokens()));
      default: return ClearOwn();
    }
  }

  // A prompt that nobody else stores is moved about and then cleared: from that call on nobody finds it.
  void ClearOwn() {
    const uint32_t prompt = Own();
    const std::vector<kvist_key> keys = player.engine.Keys(prompt, kChunks);
    const std::vector<uint32_t> tokens = FakeEngine::Tokens(prompt, kChunks);
    player.engine.StoreAll(keys, 0, Player::kTimeoutMicros, player.pages_from);
    for (uint32_t jobs = Any(4); jobs > 0; --jobs) {
      const uint32_t which = Any(4);
      which == 0 ? Move(tokens) : which == 1 ? Prefetch(tokens) : which == 2 ? Recode(tokens) : ClearTier(tokens);
    }
    if (Any(2) == 0) player.Load(keys);
    const Jobs jobs = ClearPrompt(tokens);
    if (jobs.empty()) return;  // as many run as may
    ++cleared;
    came_back += Finds(keys);
    for (const uint64_t job : jobs) Watch(job);
    came_back += Finds(keys);
    // What was on its way when it was cleared has arrived by now.
    std::this_thread::yield();
    came_back += Finds(keys);
  }
  bool Finds(const std::vector<kvist_key>& keys) {
    return player.engine.scheduler().Lookup(keys, Player::kTimeoutMicros, Player::kTimeoutMicros).chunks > 0;
  }
  uint32_t Own() const { return 1000 * (100 + number_); }

  static constexpr uint32_t kChunks = Player::kPlayedChunks;

 private:
  using Jobs = std::vector<uint64_t>;

  uint32_t Any(uint32_t below) { return static_cast<uint32_t>(player.random() % below); }
  std::vector<uint32_t> AnyTokens() { return FakeEngine::Tokens(player.Number(), 1 + Any(kChunks)); }
  std::string AnyTierBelow() { return Any(2) == 0 ? "ssd" : "remote:shared"; }
  std::string AnyTier() { return std::array<const char*, 3>{"dram", "ssd", "remote:shared"}[Any(3)]; }

  template <class Request, class Reply>
  bool Ask(grpc::Status (api::Node::Stub::*method)(grpc::ClientContext*, const Request&, Reply*), const Request& request,
           Reply* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTime);
    const grpc::Status status = (stub_.get()->*method)(&context, request, reply);
    // As many jobs run as may, pins keep as much as they may, a job or pin is gone, or chunks can't be moved that way.
    const bool expected = status.ok() || status.error_code() == grpc::RESOURCE_EXHAUSTED ||
                          status.error_code() == grpc::NOT_FOUND || status.error_code() == grpc::UNIMPLEMENTED;
    if (!expected) trouble = status.error_message();
    return status.ok();
  }

  template <class Request>
  Jobs Begin(const char* name,
             grpc::Status (api::Node::Stub::*method)(grpc::ClientContext*, const Request&, api::PromptJobsReply*),
             Request request, const std::vector<uint32_t>& tokens) {
    request.mutable_prompt()->mutable_tokens()->Add(tokens.begin(), tokens.end());
    api::PromptJobsReply reply;
    if (!Ask(method, request, &reply)) return {};
    Jobs jobs;
    for (const api::Job& job : reply.jobs()) jobs.push_back(job.id());
    began[name] += jobs.size();
    return jobs;
  }

  Jobs Move(const std::vector<uint32_t>& tokens) {
    api::MoveRequest request;
    request.set_from(AnyTier());
    do { request.set_to(AnyTier()); } while (request.to() == request.from());
    request.set_keep_source(Any(2) == 0);
    return Begin("moves", &api::Node::Stub::Move, request, tokens);
  }
  Jobs Prefetch(const std::vector<uint32_t>& tokens) {
    return Begin("prefetches", &api::Node::Stub::Prefetch, api::PrefetchRequest(), tokens);
  }
  Jobs Recode(const std::vector<uint32_t>& tokens) {
    if (Any(2) == 0) {
      api::DecompressRequest request;
      request.set_tier(AnyTierBelow());
      return Begin("decompressions", &api::Node::Stub::Decompress, request, tokens);
    }
    api::CompressRequest request;
    request.set_tier(AnyTierBelow());
    request.set_method("lossless");
    const Jobs jobs = Begin("compressions", &api::Node::Stub::Compress, request, tokens);
    for (const uint64_t job : jobs) Watch(job, &encoded[request.tier()]);
    return jobs;
  }
  Jobs ClearPrompt(const std::vector<uint32_t>& tokens) {
    return Begin("clears of prompts", &api::Node::Stub::ClearPrompt, api::ClearPromptRequest(), tokens);
  }
  Jobs ClearTier(const std::vector<uint32_t>& tokens) {
    api::ClearPromptRequest request;
    request.set_tier(AnyTier());
    return Begin("clears of one tier", &api::Node::Stub::ClearPrompt, request, tokens);
  }
  void ClearSpace() {
    api::StatusReply status;
    if (!Ask(&api::Node::Stub::Status, api::StatusRequest(), &status) || status.spaces().empty()) return;
    api::ClearRequest request;
    request.set_space(status.spaces(static_cast<int>(Any(static_cast<uint32_t>(status.spaces_size())))).digest());
    api::Job job;
    if (Any(2) == 0) request.set_tier(AnyTier());
    if (!Ask(&api::Node::Stub::Clear, request, &job)) return;
    ++began[request.tier().empty() ? "clears of a space" : "clears of a space in one tier"];
    Watch(job.id());
  }
  // Engines pin more than they unpin, so there is seldom room: some of that goes, and half as much is asked for, down to one chunk.
  void Pin(const std::vector<uint32_t>& tokens) {
    api::AddPinRequest request;
    auto* asked = request.mutable_prompt()->mutable_tokens();
    asked->Add(tokens.begin(), tokens.end());
    request.set_seconds(Any(2) == 0 ? 0 : 0.1);
    api::AddPinReply reply;
    const auto chunk = static_cast<int>(FakeEngine::Tokens(0, 1).size());
    while (!Ask(&api::Node::Stub::AddPin, request, &reply)) {
      if (asked->size() == chunk) return;
      Unpin();
      asked->Truncate(asked->size() / chunk / 2 * chunk);
    }
    ++began["pins"];
  }
  void Unpin() {
    api::ListPinsReply pins;
    if (!Ask(&api::Node::Stub::ListPins, api::ListPinsRequest(), &pins) || pins.pins().empty()) return;
    for (int some = 0; some < 8; ++some) {
      api::RemovePinRequest request;
      request.set_id(pins.pins(static_cast<int>(Any(static_cast<uint32_t>(pins.pins_size())))).id());
      api::Pin pin;
      began["unpins"] += Ask(&api::Node::Stub::RemovePin, request, &pin);
    }
  }
  void Cancel() {
    api::ListJobsReply jobs;
    if (!Ask(&api::Node::Stub::ListJobs, api::ListJobsRequest(), &jobs) || jobs.jobs().empty()) return;
    // A clear that was cancelled promises nothing.
    const api::Job& job = jobs.jobs(jobs.jobs_size() - 1);
    if (job.state() != "running" || job.kind() == "clear" || job.kind() == "clear-prompt") return;
    api::CancelJobRequest request;
    request.set_id(job.id());
    api::Job ended;
    began["cancels"] += Ask(&api::Node::Stub::CancelJob, request, &ended);
  }
  // Half of the jobs are waited for.
  void Follow(const Jobs& jobs) {
    if (!jobs.empty() && Any(2) == 0) Watch(jobs.back());
  }
  // Until it has ended; `chunks` is added to which it did what it was to.
  void Watch(uint64_t id, uint64_t* chunks = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 3 * kCallTime);
    api::WatchJobRequest request;
    request.set_id(id);
    const auto stream = stub_->WatchJob(&context, request);
    api::Job job;
    while (stream->Read(&job)) {}
    if (chunks != nullptr) *chunks += job.chunks();
    const grpc::Status status = stream->Finish();
    if (!status.ok() && status.error_code() != grpc::NOT_FOUND) trouble = "a job goes on: " + status.error_message();
  }

  std::unique_ptr<api::Node::Stub> stub_;
  const uint32_t number_;
  uint32_t acts_ = 0;

 public:
  Player player;
  std::map<std::string, uint64_t> began;    // that were taken
  std::map<std::string, uint64_t> encoded;  // chunks, by tier
  uint64_t cleared = 0, came_back = 0;      // own prompts
  std::string trouble;                      // an answer that nobody should get; the last
};

// Two spaces with the same keys and other bytes.
std::vector<std::unique_ptr<FakeEngine>> EnginesOn(const DaemonProcess& daemon) {
  std::vector<std::unique_ptr<FakeEngine>> engines;
  for (uint32_t e = 0; e < kEngines; ++e) {
    FakeEngine::Options options = FakeEngine::On(daemon.socket(), "engine " + std::to_string(e));
    options.pages = 1024;
    options.half_empty = true;  // so that it can be encoded
    options.model = e % 2 == 0 ? "a" : "b";
    engines.push_back(std::make_unique<FakeEngine>(options));
    REQUIRE(engines.back()->status.message == "");
  }
  return engines;
}

uint64_t Running(const DaemonProcess& daemon) {
  const nlohmann::json jobs = Ctl(daemon, {"jobs"})["jobs"];
  return static_cast<uint64_t>(
      std::count_if(jobs.begin(), jobs.end(), [](const auto& job) { return job["state"] == "running"; }));
}

// What of a status says whether anything is left.
nlohmann::json WhatIsLeft(const nlohmann::json& status) {
  nlohmann::json left;
  for (const char* name : {"leases", "ops", "filling", "pins", "allocations", "ssd", "remote"}) left[name] = status[name];
  left["used_bytes"] = status["pool"]["used_bytes"];
  return left;
}

// Whether nothing of any prompt is found by a lookup that also asks the store beyond the node.
uint32_t Found(std::vector<std::unique_ptr<FakeEngine>>& engines, const std::vector<uint32_t>& prompts) {
  uint32_t found = 0;
  for (const uint32_t prompt : prompts) {
    for (size_t e = 0; e < 2; ++e) {
      const std::vector<kvist_key> keys = engines[e]->Keys(prompt, Operator::kChunks);
      found += engines[e]->scheduler().Lookup(keys, Player::kTimeoutMicros, Player::kTimeoutMicros).chunks;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("Row 39: jobs of operators race with engines and eviction in 40 threads, over three tiers") {
  const auto time = std::chrono::seconds(Campaign("KVIST_JOB_RACE_SECONDS", kSanitized ? 15 : 60, 60));
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  const TempDir dir, shared;
  DaemonProcess daemon(dir.path(), {"ssd.enabled=true", "ssd.capacity=64MiB", "pool.bytes=6MiB", "pool.slab_bytes=1MiB",
                                    "pool.touch_threads=0", "lease.share=0.9", "remote.store=file://" + shared.path(),
                                    "remote.lookup_wait=2s", "log.level=warn"});
  REQUIRE(HasRecovered(daemon));
  std::vector<std::unique_ptr<FakeEngine>> engines = EnginesOn(daemon);
  for (const auto& engine : engines) REQUIRE(engine->StoreAll(engine->Keys(0, 1)).status == KVIST_OK);  // or no space is met
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["reachable"] == true; }));

  std::atomic<bool> stop{false};
  std::vector<Player> players;
  std::vector<std::unique_ptr<Operator>> operators;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kEngineThreads; ++t)
    players.push_back({*engines[t % kEngines], t / kEngines * Player::kPlayedChunks, std::mt19937(seed + t)});
  for (uint32_t o = 0; o < kOperators; ++o)
    operators.push_back(std::make_unique<Operator>(daemon.admin_socket(), engines[o % kEngines].get(), o, ~seed + o));
  for (Player& player : players) {
    threads.emplace_back([&] {
      while (!stop) kPlays[player.random() % kPlays.size()].play(player);
    });
  }
  for (const auto& each : operators) {
    threads.emplace_back([&, o = each.get()] {
      while (!stop) o->Act();
    });
  }
  const auto end = Clock::now() + time;
  while (Clock::now() < end && !daemon.Ended().has_value()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE_FALSE(daemon.Ended().has_value());

  uint64_t hits = 0, wrong = 0, cleared = 0, came_back = 0;
  std::map<std::string, uint64_t> began, encoded;
  const auto add = [&](const Player& player) {
    hits += player.hits;
    wrong += player.wrong;
    CHECK(player.first_wrong == "");
  };
  for (const Player& player : players) add(player);
  for (const auto& each : operators) {
    add(each->player);
    for (const auto& [name, count] : each->began) began[name] += count;
    for (const auto& [tier, count] : each->encoded) encoded[tier] += count;
    cleared += each->cleared;
    came_back += each->came_back;
    CHECK(each->trouble == "");
  }
  const nlohmann::json status = StatusOf(daemon), ssd = Ctl(daemon, {"ssd"}), &remote = status["remote"];
  std::string jobs;
  for (const auto& [name, count] : began) jobs += std::to_string(count) + " " + name + ", ";
  for (const auto& [tier, count] : encoded) jobs += std::to_string(count) + " chunks encoded in " + tier + ", ";
  std::printf(
      "row 39: %u threads of %u engines and %u operators: %s%lu evictions, %lu chunks read from disk and %lu from the "
      "store; cleared "
      "prompts that came back %lu of %lu; wrong prompts %lu of %lu chunks loaded\n",
      kEngineThreads, kEngines, kOperators, jobs.c_str(), status["evictions"].get<uint64_t>(),
      ssd["chunks_read"].get<uint64_t>(), remote["chunks_read"].get<uint64_t>(), came_back, cleared, wrong, hits);
  CHECK(wrong == 0);
  CHECK(came_back == 0);
  CHECK(hits > 0);
  CHECK(cleared > 0);
  CHECK(status["evictions"] > 0);
  CHECK(ssd["chunks_read"] > 0);
  CHECK(remote["chunks_written"] > 0);
  CHECK(remote["chunks_read"] > 0);
  for (const char* tier : {"ssd", "remote:shared"}) {
    CAPTURE(tier);
    CHECK((encoded[tier] > 0 || kSanitized));  // they do far less in their time
  }
  for (const char* name : {"moves", "prefetches", "compressions", "decompressions", "clears of prompts",
                           "clears of one tier", "pins", "unpins"}) {
    CAPTURE(name);
    CHECK(began[name] > 0);
  }

  // All jobs end, and nothing is left on its way or kept.
  CHECK(Eventually([&] { return Running(daemon) == 0; }));
  const nlohmann::json pins = Ctl(daemon, {"pins"})["pins"];
  for (const auto& pin : pins) {  // the others end by themselves, perhaps before they could be removed
    if (pin.value("seconds_left", 0.0) == 0) Ctl(daemon, {"pins", "remove", std::to_string(pin["id"].get<uint64_t>())});
  }
  nlohmann::json now;
  const bool rests = Eventually([&] {
    now = StatusOf(daemon);
    return AtRest(now) && now["pins"] == 0 && now["remote"]["bytes_on_their_way"] == 0;
  });
  {
    INFO(WhatIsLeft(now).dump());
    CHECK(rests);
  }
  Ctl(daemon, {"clear", "--yes"});
  const bool empty = Eventually([&] {
    now = StatusOf(daemon);
    return AtRest(now) && now["pool"]["used_bytes"] == 0 && now["ssd"]["chunks"] == 0 &&
           now["ssd"]["live_bytes"] <= kHeaders;
  });
  {
    INFO(WhatIsLeft(now).dump());
    CHECK(empty);
  }
  std::vector<uint32_t> prompts;
  for (uint32_t p = 0; p < Player::kPrompts; ++p) prompts.push_back(1000 * p);
  for (const auto& each : operators) prompts.push_back(each->Own());
  CHECK(Found(engines, prompts) == 0);
  engines.clear();
  daemon.Kill();
  daemon.Start();
  REQUIRE(HasRecovered(daemon));
  REQUIRE(Eventually([&] { return StatusOf(daemon)["remote"]["reachable"] == true; }));
  std::vector<std::unique_ptr<FakeEngine>> again = EnginesOn(daemon);
  CHECK(Found(again, prompts) == 0);
}
