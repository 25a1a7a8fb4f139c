// Jobs of a real kvistd that is killed while they run: the next one goes on with them, under their numbers and requests' names.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/node.grpc.pb.h"
#include "tests/support/crash_plan.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/shared_file.h"
#include "tests/support/temp_dir.h"

namespace api = kvist::node::v1;
using kvist::test::BinDir;
using kvist::test::CrashPlan;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 16;  // of a prompt
constexpr int64_t kFlushTime = 30'000'000;

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

// A kvistd in a folder of its own, whose disk stands before a step when the test says so: then no job that waits for it ends.
class Node {
 public:
  Node() : plan_(kvist::test::SharedFile<CrashPlan>(dir_ / "plan")) {
    std::filesystem::create_directory(dir_ / "state");
    ::setenv("KVISTD", (BinDir() + "/kvistd_crashing").c_str(), 1);
    ::setenv("KVIST_CRASH_PLAN", (dir_ / "plan").c_str(), 1);
    ::setenv("KVIST_RECLAIMED", (dir_ / "reclaimed").c_str(), 1);
    Start();
    REQUIRE(HasRecovered(*daemon_));
  }
  ~Node() {
    daemon_.reset();
    for (const char* name : {"KVISTD", "KVIST_CRASH_PLAN", "KVIST_RECLAIMED"}) ::unsetenv(name);
  }

  void Start(std::vector<std::string> more = {}) {
    std::vector<std::string> settings{"ssd.enabled=true", "ssd.capacity=512MiB", "pool.bytes=6MiB", "pool.slab_bytes=1MiB",
                                      "pool.touch_threads=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    daemon_ = std::make_unique<DaemonProcess>(dir_.path(), settings);
  }
  void Kill() {
    daemon_->Kill();
    plan_->left = 0;
  }
  // The disk goes no further at the `left`-th step that begins with `step`, from now on.
  void StandBefore(const char* step, uint32_t left = 1) {
    std::strncpy(plan_->step, step, sizeof plan_->step - 1);
    plan_->stands = 1;
    plan_->left = left;
  }
  bool Stands() const {
    return Eventually([this] { return plan_->left == 0; });
  }

  // Begins a job, which isn't waited for; its number.
  template <class Request>
  uint64_t Begin(grpc::Status (api::Node::Stub::*method)(grpc::ClientContext*, const Request&, api::PromptJobsReply*),
                 Request request, uint32_t prompt, const std::string& name) {
    for (const uint32_t token : FakeEngine::Tokens(prompt * 1000, kChunks)) request.mutable_prompt()->add_tokens(token);
    request.set_request(name);
    api::PromptJobsReply reply;
    Ask(method, request, &reply);
    REQUIRE(reply.jobs_size() == 1);
    return reply.jobs(0).id();
  }
  uint64_t Clear(const std::string& tier, const std::string& name) {
    api::ClearRequest request;
    request.set_tier(tier);
    request.set_request(name);
    api::Job job;
    Ask(&api::Node::Stub::Clear, request, &job);
    return job.id();
  }

  // Its KV can be encoded in fewer bytes.
  FakeEngine::Options Engine() const {
    FakeEngine::Options options = FakeEngine::On(daemon_->socket());
    options.half_empty = true;
    return options;
  }
  void StoreDurably(uint32_t prompt) {
    FakeEngine engine(Engine());
    REQUIRE(engine.status.ok());
    REQUIRE(engine.StoreAll(Prompt(engine, prompt)).status == KVIST_OK);
    uint32_t durable = 0;
    REQUIRE(engine.scheduler().Flush(kFlushTime, &durable).ok());
  }
  // How many chunks of the prompt engines find.
  uint32_t Hits(uint32_t prompt) {
    FakeEngine engine(Engine());
    REQUIRE(engine.status.ok());
    std::string wrong;
    const uint32_t chunks = engine.LoadAll(Prompt(engine, prompt), &wrong);
    CHECK(wrong.empty());
    return chunks;
  }
  nlohmann::json Job(uint64_t id) const {
    const nlohmann::json jobs = Ctl(*daemon_, {"jobs"}).at("jobs");
    for (const nlohmann::json& job : jobs) {
      if (job["id"] == id) return job;
    }
    return {{"state", "none"}};
  }
  bool Ends(uint64_t id) const {
    return Eventually([&] { return Job(id)["state"] != "running"; });
  }

  DaemonProcess& daemon() { return *daemon_; }
  std::string File() const { return dir_ / "state/jobs"; }

 private:
  template <class Method, class Request, class Reply>
  void Ask(Method method, const Request& request, Reply* reply) {
    const auto stub =
        api::Node::NewStub(grpc::CreateChannel("unix:" + daemon_->admin_socket(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Status status = (stub.get()->*method)(&context, request, reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
  }

  const TempDir dir_;
  CrashPlan* const plan_;
  std::unique_ptr<DaemonProcess> daemon_;
};

api::MoveRequest Move(const char* from, const char* to) {
  api::MoveRequest move;
  move.set_from(from);
  move.set_to(to);
  return move;
}

}  // namespace

TEST_CASE("A move that kvistd was killed in ends after the next start, under its number, and so do those behind it") {
  Node node;
  node.StoreDurably(0);
  node.StandBefore("chunk: data", 5);
  {
    FakeEngine engine(node.Engine());
    REQUIRE(engine.StoreAll(Prompt(engine, 1)).status == KVIST_OK);
  }
  const uint64_t move = node.Begin(&api::Node::Stub::Move, Move("dram", "ssd"), 1, "down");
  const uint64_t back = node.Begin(&api::Node::Stub::Move, Move("ssd", "dram"), 0, "up");
  REQUIRE(node.Stands());
  CHECK(node.Job(move)["state"] == "running");
  CHECK(node.Job(back)["state"] == "running");
  struct stat found {};
  REQUIRE(stat(node.File().c_str(), &found) == 0);
  CHECK((found.st_mode & 07777) == 0600);
  node.Kill();

  node.Start();
  REQUIRE(node.Ends(move));
  REQUIRE(node.Ends(back));
  for (const uint64_t id : {move, back}) {
    const nlohmann::json job = node.Job(id);
    INFO(job.dump());
    CHECK(job["state"] == "done");
    CHECK(job["resumed"] == true);
    CHECK(job["trouble"] == "");
  }
  CHECK(node.Job(move)["request"] == "down");
  CHECK(node.Job(back)["chunks"].get<uint64_t>() + node.Job(back)["already_there"].get<uint64_t>() == kChunks);
  CHECK(node.Hits(0) == kChunks);
  // Who asks again gets the same, also of a daemon that never ran it; and another request gets another number.
  CHECK(node.Begin(&api::Node::Stub::Move, Move("ssd", "dram"), 0, "up") == back);
  node.Kill();
  node.Start();
  CHECK(node.Job(back)["resumed"] == true);
  REQUIRE(HasRecovered(node.daemon()));
  node.StoreDurably(0);
  CHECK(node.Begin(&api::Node::Stub::Move, Move("ssd", "dram"), 0, "up") == back);
  CHECK(node.Begin(&api::Node::Stub::Move, Move("ssd", "dram"), 0, "again") > back);
}

TEST_CASE("Encoding on disk that kvistd was killed in ends after the next start, and all is there at any time") {
  Node node;
  node.StoreDurably(0);
  node.StandBefore("chunk: row", 7);  // of some the row leads to what is encoded, and of others it doesn't
  api::CompressRequest request;
  request.set_tier("ssd");
  request.set_method("lossless");
  const uint64_t job = node.Begin(&api::Node::Stub::Compress, request, 0, "small");
  REQUIRE(node.Stands());
  CHECK(node.Job(job)["state"] == "running");
  node.Kill();

  node.Start();
  REQUIRE(node.Ends(job));
  const nlohmann::json ended = node.Job(job);
  INFO(ended.dump());
  CHECK(ended["state"] == "done");
  CHECK(ended["resumed"] == true);
  CHECK(ended["not_moved"] == 0);
  CHECK(ended["chunks"].get<uint64_t>() + ended["already_there"].get<uint64_t>() == kChunks);
  CHECK(ended["chunks"] > 0);
  CHECK(ended["bytes_after"] < ended["bytes"]);
  CHECK(node.Hits(0) == kChunks);
  node.Kill();
  node.Start();
  REQUIRE(HasRecovered(node.daemon()));
  CHECK(node.Hits(0) == kChunks);
}

TEST_CASE("A clear that kvistd was killed in has cleared all after the next start, and nothing that was stored since") {
  Node node;
  for (uint32_t p = 0; p < 4; ++p) node.StoreDurably(p);
  uint64_t job = 0;
  bool all = true;
  SECTION("of everything") {
    node.StandBefore("clear: row first");
    job = node.Clear("", "clear");
  }
  SECTION("of the disk") {
    node.StandBefore("hide: erase");
    job = node.Clear("ssd", "clear");
  }
  SECTION("of a prompt") {
    all = false;
    node.StandBefore("hide: erase");
    job = node.Begin(&api::Node::Stub::ClearPrompt, api::ClearPromptRequest(), 0, "clear");
  }
  SECTION("of a prompt on disk") {
    all = false;
    node.StandBefore("hide: erase");
    api::ClearPromptRequest clear;
    clear.set_tier("ssd");
    job = node.Begin(&api::Node::Stub::ClearPrompt, clear, 0, "clear");
  }
  REQUIRE(node.Stands());
  CHECK(node.Job(job)["state"] == "running");
  node.Kill();

  node.Start();
  node.StoreDurably(5);  // while it begins
  REQUIRE(HasRecovered(node.daemon()));
  REQUIRE(node.Ends(job));
  for (int restarts = 0; restarts < 2; ++restarts) {
    const nlohmann::json ended = node.Job(job);
    INFO(ended.dump());
    CHECK(ended["state"] == "done");
    CHECK(ended["resumed"] == true);
    CHECK(ended["request"] == "clear");
    CHECK(node.Hits(0) == 0);
    CHECK(node.Hits(1) == (all ? 0 : kChunks));
    CHECK(node.Hits(3) == (all ? 0 : kChunks));
    CHECK(node.Hits(5) == kChunks);
    if (restarts > 0) break;
    node.Kill();
    node.Start();
    REQUIRE(HasRecovered(node.daemon()));
  }
}

TEST_CASE("A job that can't go on after a restart says why, and what isn't a list of jobs is set aside") {
  Node node;
  node.StoreDurably(0);
  node.StandBefore("hide: erase");
  api::ClearPromptRequest clear;
  clear.set_tier("ssd");
  const uint64_t job = node.Begin(&api::Node::Stub::ClearPrompt, clear, 0, "clear");
  REQUIRE(node.Stands());
  node.Kill();
  SECTION("its tier is gone") {
    node.Start({"ssd.enabled=false"});
    const nlohmann::json ended = node.Job(job);
    INFO(ended.dump());
    CHECK(ended["state"] == "cancelled");
    CHECK_THAT(ended["trouble"].get<std::string>(), Catch::Contains("without the SSD tier"));
  }
  SECTION("the file is torn") {
    std::filesystem::resize_file(node.File(), std::filesystem::file_size(node.File()) - 2);
    node.Start();
    CHECK(node.Job(job)["state"] == "none");
    CHECK(std::filesystem::exists(node.File() + ".unusable"));
    REQUIRE(HasRecovered(node.daemon()));
    CHECK(node.Hits(0) == kChunks);
  }
}
