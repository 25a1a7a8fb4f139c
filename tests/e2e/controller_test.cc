// The controller's API over real kvistds: kvist-controller with two of them, and each of them over itself.
#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/controller.grpc.pb.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

namespace api = kvist::controller::v1;
using kvist::test::BinDir;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 6;  // of a prompt
constexpr uint32_t kPromptTokens = kChunks * FakeEngine::kChunkTokens;
constexpr std::chrono::seconds kTime(20);

std::chrono::system_clock::time_point In(std::chrono::milliseconds time) { return std::chrono::system_clock::now() + time; }

// A client of the API on one socket.
class Client {
 public:
  explicit Client(const std::string& socket)
      : channel_(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials())),
        stub_(api::Controller::NewStub(channel_)) {
    REQUIRE(channel_->WaitForConnected(In(kTime)));
  }
  template <class Request, class Reply>
  using Method = grpc::Status (api::Controller::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  template <class Request, class Reply>
  std::pair<grpc::Status, Reply> Ask(Method<Request, Reply> method, const Request& request,
                                     std::chrono::milliseconds time = kTime) const {
    grpc::ClientContext context;
    context.set_deadline(In(time));
    std::pair<grpc::Status, Reply> answer;
    answer.first = (stub_.get()->*method)(&context, request, &answer.second);
    return answer;
  }
  // What it answers; requires that it succeeds.
  template <class Request, class Reply>
  Reply Good(Method<Request, Reply> method, const Request& request) const {
    auto answer = Ask(method, request);
    INFO(answer.first.error_message());
    REQUIRE(answer.first.ok());
    return std::move(answer.second);
  }
  // Its error: that code, and a message that contains this.
  template <class Request, class Reply>
  void Refuses(Method<Request, Reply> method, const Request& request, grpc::StatusCode code, const std::string& why) const {
    const grpc::Status status = Ask(method, request).first;
    INFO(status.error_message());
    CHECK(status.error_code() == code);
    CHECK_THAT(status.error_message(), Catch::Contains(why));
  }
  // The job as it ended, and how often it was said how far it was.
  api::Job Watch(const std::string& id, int* said = nullptr) const {
    api::WatchJobRequest request;
    request.set_job(id);
    grpc::ClientContext context;
    context.set_deadline(In(kTime));
    const auto stream = stub_->WatchJob(&context, request);
    api::Job job;
    int count = 0;
    while (stream->Read(&job)) ++count;
    const grpc::Status status = stream->Finish();
    INFO(status.error_message());
    REQUIRE(status.ok());
    if (said != nullptr) *said = count;
    return job;
  }
  api::Controller::Stub& stub() const { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<api::Controller::Stub> stub_;
};

ChildProcess StartController(std::vector<std::string> arguments) {
  return ChildProcess([arguments] {
    std::vector<std::string> words{BinDir() + "/kvist-controller"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (freopen("/dev/null", "w", stdout) == nullptr) return 98;  // READY
    execv(argv[0], argv.data());
    return 97;
  });
}

// Two nodes with their engines, and controllers over them.
struct Cluster {
  TempDir dir;
  DaemonProcess a, b;
  explicit Cluster(const std::vector<std::string>& settings = {"pool.bytes=8MiB", "ssd.enabled=false"})
      : a(Made("a"), With(settings, "own-a")), b(Made("b"), With(settings, "own-b")) {}

  std::vector<std::string> Nodes() const {
    return {"--node", "node-a=unix:" + a.admin_socket(), "--node", "node-b=unix:" + b.admin_socket()};
  }
  ChildProcess Start(const std::string& socket) const {
    std::vector<std::string> arguments = Nodes();
    arguments.insert(arguments.end(), {"--socket", socket});
    return StartController(arguments);
  }

 private:
  std::string Made(const std::string& name) {
    const std::string path = dir / name;
    REQUIRE(::mkdir(path.c_str(), 0755) == 0);
    return path;
  }
  static std::vector<std::string> With(std::vector<std::string> settings, const std::string& name) {
    settings.push_back("daemon.node=" + name);
    settings.push_back("pool.touch_threads=0");
    return settings;
  }
};

struct Controlled : Cluster {
  using Cluster::Cluster;
  ChildProcess process = Start(dir / "controller.sock");
  Client client = Connected(dir / "controller.sock");

  static Client Connected(const std::string& socket) { return Client(socket); }
};

void Store(FakeEngine::Options options, uint32_t prompt) {
  FakeEngine engine(std::move(options));
  REQUIRE(engine.status.message == "");
  REQUIRE(engine.StoreAll(engine.Keys(prompt, kChunks)).status == KVIST_OK);
}
void Store(const DaemonProcess& daemon, uint32_t prompt) { Store(FakeEngine::On(daemon.socket()), prompt); }

template <class Request>
Request On(uint32_t prompt) {
  Request request;
  for (const uint32_t token : FakeEngine::Tokens(prompt, kChunks)) request.mutable_prompt()->add_tokens(token);
  return request;
}

// A lookup that every node is asked: the directory may know of a change a moment later (followed_nodes_test.cc).
api::LookupRequest Asking(uint32_t prompt) {
  api::LookupRequest request = On<api::LookupRequest>(prompt);
  request.set_ask_nodes(true);
  return request;
}

template <class Request>
Request OnNode(const std::string& node, uint32_t prompt) {
  Request request = On<Request>(prompt);
  request.set_node(node);
  return request;
}

// Tokens that each node holds, by "node tier".
std::map<std::string, uint64_t> WhereIs(const Client& client, uint32_t prompt) {
  std::map<std::string, uint64_t> where;
  const api::LookupReply reply = client.Good(&api::Controller::Stub::Lookup, Asking(prompt));
  for (const api::LookupReply::InSpace& space : reply.spaces())
    for (const auto& tier : space.tiers()) where[space.node() + " " + tier.tier()] += tier.tokens();
  return where;
}
using Where = std::map<std::string, uint64_t>;

template <class Reply>
std::map<std::string, int> CodesOf(const Reply& reply) {
  std::map<std::string, int> codes;
  for (const api::Outcome& outcome : reply.nodes()) codes[outcome.node()] = outcome.code();
  return codes;
}
using Codes = std::map<std::string, int>;

const std::vector<std::string> kWithDisk{"pool.bytes=8MiB", "ssd.enabled=true", "ssd.capacity=256MiB"};

api::MoveRequest ToDisk(const std::string& node, uint32_t prompt, const std::string& request = "") {
  api::MoveRequest move = On<api::MoveRequest>(prompt);
  move.mutable_source()->set_node(node);
  move.mutable_source()->set_tier("dram");
  move.mutable_destination()->set_tier("ssd");
  move.set_request(request);
  return move;
}

}  // namespace

TEST_CASE("lookup: which node holds how much of a prompt, in which tier") {
  const Controlled cluster;
  Store(cluster.a, 1000);
  Store(cluster.b, 1007);  // begins with the first two chunks of the other
  const api::LookupReply reply = cluster.client.Good(&api::Controller::Stub::Lookup, Asking(1000));
  REQUIRE(reply.spaces_size() == 2);
  CHECK(CodesOf(reply) == Codes{{"node-a", 0}, {"node-b", 0}});
  const api::LookupReply::InSpace& a = reply.spaces(0);
  CHECK(a.node() == "node-a");
  CHECK(a.digest().size() == 64);
  CHECK(a.digest() == reply.spaces(1).digest());
  CHECK(a.model() == "fake-model");
  CHECK(a.chunk_tokens() == FakeEngine::kChunkTokens);
  CHECK(a.key_scheme() == "kvist.chunk.1");
  CHECK(a.prompt_chunks() == kChunks);
  CHECK(a.chunks() == kChunks);
  CHECK(a.tokens() == kPromptTokens);
  REQUIRE(a.tiers_size() == 1);
  CHECK(a.tiers(0).tier() == "dram");
  CHECK(WhereIs(cluster.client, 1000) ==
        Where{{"node-a dram", kPromptTokens}, {"node-b dram", 2 * FakeEngine::kChunkTokens}});
  CHECK(WhereIs(cluster.client, 5000) == Where{});

  api::LookupRequest request = Asking(1000);
  request.add_nodes("node-b");
  request.mutable_space()->set_digest(a.digest().substr(0, 8));
  CHECK(cluster.client.Good(&api::Controller::Stub::Lookup, request).spaces_size() == 1);
  request.mutable_space()->set_model("another");
  CHECK(CodesOf(cluster.client.Good(&api::Controller::Stub::Lookup, request)) == Codes{{"node-b", grpc::NOT_FOUND}});
}

TEST_CASE("query_ip: where each node is") {
  const Controlled cluster;
  const api::QueryIpReply reply = cluster.client.Good(&api::Controller::Stub::QueryIp, api::QueryIpRequest());
  REQUIRE(reply.addresses_size() == 2);
  CHECK(reply.addresses(0).node() == "node-a");
  CHECK(reply.addresses(0).api() == "unix:" + cluster.a.admin_socket());
  REQUIRE(reply.addresses(0).ips_size() > 0);
  for (const std::string& ip : reply.addresses(0).ips()) {
    INFO(ip);
    in6_addr parsed{};
    CHECK((inet_pton(AF_INET, ip.c_str(), &parsed) == 1 || inet_pton(AF_INET6, ip.c_str(), &parsed) == 1));
  }
  // As the node says it itself.
  const Client node(cluster.b.admin_socket());
  const api::QueryIpReply own = node.Good(&api::Controller::Stub::QueryIp, api::QueryIpRequest());
  REQUIRE(own.addresses_size() == 1);
  CHECK(own.addresses(0).node() == "own-b");
  CHECK(own.addresses(0).api() == "");
  CHECK(std::equal(own.addresses(0).ips().begin(), own.addresses(0).ips().end(), reply.addresses(1).ips().begin(),
                   reply.addresses(1).ips().end()));
}

TEST_CASE("move: from tier to tier of a node, by a job that can be watched; not between nodes yet") {
  const Controlled cluster(kWithDisk);
  for (const DaemonProcess* daemon : {&cluster.a, &cluster.b}) Store(*daemon, 1000);
  const Client& client = cluster.client;

  const api::JobsReply started = client.Good(&api::Controller::Stub::Move, ToDisk("node-a", 1000, "case-7"));
  REQUIRE(started.jobs_size() == 1);
  const std::string id = started.jobs(0).id();
  CHECK_THAT(id, Catch::StartsWith("node-a/"));
  CHECK(started.jobs(0).kind() == "move");
  int said = 0;
  const api::Job ended = client.Watch(id, &said);
  CHECK(said > 0);
  CHECK(ended.state() == "done");
  CHECK(ended.chunks() == kChunks);
  CHECK(ended.request() == "case-7");
  CHECK(WhereIs(client, 1000) == Where{{"node-a ssd", kPromptTokens}, {"node-b dram", kPromptTokens}});
  // Asked again under its name, it is the same job.
  CHECK(client.Good(&api::Controller::Stub::Move, ToDisk("node-a", 1000, "case-7")).jobs(0).id() == id);
  // And something else under its name is neither done nor taken for done.
  api::ClearRequest clear = OnNode<api::ClearRequest>("node-a", 1000);
  clear.set_request("case-7");
  api::MoveRequest kept = ToDisk("node-a", 1000, "case-7");
  kept.set_keep_source(true);
  client.Refuses(&api::Controller::Stub::Clear, clear, grpc::ALREADY_EXISTS, "job 1 has been asked for under this name");
  client.Refuses(&api::Controller::Stub::Move, kept, grpc::ALREADY_EXISTS, "something else");
  client.Refuses(&api::Controller::Stub::Move, ToDisk("node-a", 2000, "case-7"), grpc::ALREADY_EXISTS, "something else");

  api::GetJobRequest get;
  get.set_job(id);
  CHECK(client.Good(&api::Controller::Stub::GetJob, get).chunks() == kChunks);
  api::CancelJobRequest cancel;
  cancel.set_job(id);
  CHECK(client.Good(&api::Controller::Stub::CancelJob, cancel).state() == "done");
  const api::ListJobsReply jobs = client.Good(&api::Controller::Stub::ListJobs, api::ListJobsRequest());
  CHECK(jobs.jobs_size() == 1);
  CHECK(jobs.nodes_size() == 2);

  const auto back = client.Good(&api::Controller::Stub::Prefetch, OnNode<api::PrefetchRequest>("node-a", 1000));
  CHECK(client.Watch(back.jobs(0).id()).kind() == "prefetch");
  CHECK(WhereIs(client, 1000) == Where{{"node-a dram", kPromptTokens}, {"node-b dram", kPromptTokens}});
  // Of all nodes at once.
  const api::JobsReply of_all = client.Good(&api::Controller::Stub::Move, ToDisk("", 1000));
  for (const api::Job& job : of_all.jobs()) client.Watch(job.id());
  CHECK(WhereIs(client, 1000) == Where{{"node-a ssd", kPromptTokens}, {"node-b ssd", kPromptTokens}});

  api::MoveRequest between = ToDisk("node-a", 1000);
  between.mutable_destination()->set_node("node-b");
  client.Refuses(&api::Controller::Stub::Move, between, grpc::UNIMPLEMENTED, "destination.node: \"node-b\"");
  between.mutable_destination()->set_tier("dram");
  client.Refuses(&api::Controller::Stub::Move, between, grpc::UNIMPLEMENTED, "destination.node: \"node-b\"");
  api::MoveRequest nowhere = ToDisk("node-a", 1000);
  nowhere.mutable_destination()->set_tier("tape");
  client.Refuses(&api::Controller::Stub::Move, nowhere, grpc::INVALID_ARGUMENT, "destination.tier: \"tape\"");
}

TEST_CASE("clear: a prompt, a tenant's spaces or everything, of a node or of all") {
  const Controlled cluster;
  const Client& client = cluster.client;
  for (const DaemonProcess* daemon : {&cluster.a, &cluster.b}) {
    Store(*daemon, 1000);
    Store(*daemon, 2000);
  }
  const Where everywhere{{"node-a dram", kPromptTokens}, {"node-b dram", kPromptTokens}};
  const auto clear = [&client](const api::ClearRequest& request) {
    const api::JobsReply reply = client.Good(&api::Controller::Stub::Clear, request);
    for (const api::Job& job : reply.jobs()) CHECK(client.Watch(job.id()).state() == "done");
    return reply;
  };
  CHECK(clear(OnNode<api::ClearRequest>("node-a", 1000)).jobs(0).kind() == "clear-prompt");
  CHECK(WhereIs(client, 1000) == Where{{"node-b dram", kPromptTokens}});
  CHECK(WhereIs(client, 2000) == everywhere);

  api::ClearRequest of_tenant;
  of_tenant.mutable_space()->set_tenant("uid:" + std::to_string(geteuid()));
  of_tenant.set_node("node-b");
  of_tenant.set_request("tenant-9");
  const std::string id = clear(of_tenant).jobs(0).id();
  CHECK(WhereIs(client, 1000) == Where{});
  CHECK(WhereIs(client, 2000) == Where{{"node-a dram", kPromptTokens}});
  Store(cluster.b, 2000);
  CHECK(clear(of_tenant).jobs(0).id() == id);  // the same request
  CHECK(WhereIs(client, 2000) == everywhere);
  of_tenant.mutable_space()->set_tenant("nobody");
  client.Refuses(&api::Controller::Stub::Clear, of_tenant, grpc::NOT_FOUND, "node-b: space: no space fits");

  api::ClearRequest everything;
  everything.set_everything(true);
  CHECK(clear(everything).jobs_size() == 2);
  CHECK(WhereIs(client, 2000) == Where{});

  client.Refuses(&api::Controller::Stub::Clear, api::ClearRequest(), grpc::INVALID_ARGUMENT, "everything");
  Store(cluster.b, 2000);
  everything.set_tier("dram");
  const api::JobsReply of_dram = clear(everything);
  REQUIRE(of_dram.jobs_size() == 2);
  CHECK(of_dram.jobs(0).tier() == "dram");
  CHECK(WhereIs(client, 2000) == Where{});
  everything.set_tier("ssd");
  everything.set_node("node-a");
  client.Refuses(&api::Controller::Stub::Clear, everything, grpc::FAILED_PRECONDITION, "tier: this kvistd has no SSD tier");
}

TEST_CASE("pin: a prompt is kept for an owner until its time has passed, or it is unpinned") {
  const Controlled cluster;
  const Client& client = cluster.client;
  for (const DaemonProcess* daemon : {&cluster.a, &cluster.b}) Store(*daemon, 1000);
  api::PinRequest pin = On<api::PinRequest>(1000);
  pin.set_owner("router");
  pin.set_seconds(600);
  const api::PinReply pinned = client.Good(&api::Controller::Stub::Pin, pin);
  REQUIRE(pinned.pins_size() == 2);
  CHECK(CodesOf(pinned) == Codes{{"node-a", 0}, {"node-b", 0}});
  CHECK_THAT(pinned.pins(1).id(), Catch::StartsWith("node-b/"));
  CHECK(pinned.pins(1).owner() == "router");
  CHECK(pinned.pins(1).chunks() == kChunks);
  CHECK(pinned.pins(1).seconds_left() > 500);

  // Page by page, a node after the other.
  std::vector<std::string> listed;
  api::ListPinsRequest list;
  do {
    const api::ListPinsReply page = client.Good(&api::Controller::Stub::ListPins, list);
    for (const api::PinnedPrompt& one : page.pins()) listed.push_back(one.id());
    list.set_after(page.next());
  } while (!list.after().empty());
  CHECK(listed == std::vector<std::string>{pinned.pins(0).id(), pinned.pins(1).id()});

  for (uint32_t flood = 10; flood < 60; ++flood) Store(cluster.b, flood * 1000);
  CHECK(kvist::test::StatusOf(cluster.b)["evictions"] > 0);
  CHECK(WhereIs(client, 1000)["node-b dram"] == kPromptTokens);

  api::UnpinRequest unpin;
  unpin.set_pin(pinned.pins(1).id());
  CHECK(client.Good(&api::Controller::Stub::Unpin, unpin).owner() == "router");
  client.Refuses(&api::Controller::Stub::Unpin, unpin, grpc::NOT_FOUND, "node-b: ");
  unpin.set_pin("seven");
  client.Refuses(&api::Controller::Stub::Unpin, unpin, grpc::INVALID_ARGUMENT, "pin: \"seven\"");
  pin.set_seconds(1);
  pin.set_owner("brief");
  pin.set_node("node-b");
  REQUIRE(client.Good(&api::Controller::Stub::Pin, pin).pins_size() == 1);
  CHECK(Eventually([&] { return kvist::test::Ctl(cluster.b, {"pins"})["pins"].empty(); }));
}

TEST_CASE("compress: what a tier has of a prompt, with its ratio and what it has lost, and back") {
  const kvist::test::TempDir store;
  const std::string tier = GENERATE(as<std::string>(), "remote:shared", "ssd");
  const bool shared = tier == "remote:shared";
  CAPTURE(tier);
  std::vector<std::string> settings{"pool.bytes=8MiB", "lease.share=0.9", "remote.lookup_wait=2s"};
  settings.emplace_back(shared ? "ssd.enabled=false" : "ssd.enabled=true");
  if (shared) {
    const std::string secret = store / "secret", objects = store / "objects";
    std::ofstream(secret) << std::string(64, '7') << "\n";
    REQUIRE(::chmod(secret.c_str(), 0600) == 0);
    REQUIRE(::mkdir(objects.c_str(), 0700) == 0);
    settings.insert(settings.end(), {"remote.store=file://" + objects, "remote.secret_file=" + secret});
  }
  const Controlled cluster(settings);
  FakeEngine::Options options = FakeEngine::On(cluster.a.socket());
  options.half_empty = true;
  const std::string method = GENERATE(as<std::string>(), "lossless", "int8");
  if (method == "int8") options.kv_dtype = "bf16";
  if (shared) {
    Store(options, 1000);
    REQUIRE(Eventually([&] { return StatusOf(cluster.a)["remote"]["chunks_written"].get<uint64_t>() >= kChunks; }));
  } else {
    FakeEngine engine(options);
    uint32_t durable = 0;
    REQUIRE(engine.StoreAll(engine.Keys(1000, kChunks)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(/*timeout_us=*/20'000'000, &durable).ok());
    REQUIRE(durable == kChunks);
  }
  api::CompressRequest request = OnNode<api::CompressRequest>("node-a", 1000);
  request.set_tier(tier);
  request.set_method(method);
  const api::JobsReply started = cluster.client.Good(&api::Controller::Stub::Compress, request);
  REQUIRE(started.jobs_size() == 1);
  const api::Job job = cluster.client.Watch(started.jobs(0).id());
  INFO(job.ShortDebugString());
  CHECK(job.kind() == "compress");
  CHECK(job.state() == "done");
  CHECK(job.trouble().empty());
  CHECK(job.chunks() == kChunks);
  CHECK(10 * job.bytes_after() < 8 * job.bytes());
  CHECK((job.relative_error() > 0) == (method == "int8"));
  CHECK((job.attention_error() > 0) == (method == "int8"));
  CHECK(job.relative_error() < 0.05);
  CHECK(job.attention_error() < 0.05);
  // It is decoded where it is loaded: on another node, or on this one when DRAM hasn't got it any more.
  if (!shared) {
    api::ClearRequest clear = OnNode<api::ClearRequest>("node-a", 1000);
    clear.set_tier("dram");
    cluster.client.Watch(cluster.client.Good(&api::Controller::Stub::Clear, clear).jobs(0).id());
  }
  options.socket = (shared ? cluster.b : cluster.a).socket();
  const auto loads = [&] {
    FakeEngine engine(options);
    std::string wrong;
    uint32_t hit = 0;
    CHECK(Eventually([&] { return (hit = engine.LoadAll(engine.Keys(1000, kChunks), &wrong)) == kChunks; }));
    return wrong;
  };
  if (method == "lossless") CHECK(loads() == "");
  if (method == "int8") CHECK(loads() != "");
  api::DecompressRequest undo = OnNode<api::DecompressRequest>("node-a", 1000);
  undo.set_tier(tier);
  const api::Job back = cluster.client.Watch(cluster.client.Good(&api::Controller::Stub::Decompress, undo).jobs(0).id());
  INFO(back.ShortDebugString());
  CHECK(back.trouble().empty());
  CHECK(back.chunks() == kChunks);
  CHECK(back.bytes() == job.bytes_after());
  CHECK(back.bytes_after() == job.bytes());
}

TEST_CASE("compress: what can't be done is refused, and says what can") {
  const kvist::test::TempDir store;
  const Controlled cluster({"pool.bytes=8MiB", "ssd.enabled=false", "remote.store=file://" + store.path()});
  Store(cluster.a, 1000);
  api::CompressRequest request = OnNode<api::CompressRequest>("node-a", 1000);
  request.set_tier("remote:shared");
  request.set_method("int8");  // these engines' KV isn't of floats
  cluster.client.Refuses(&api::Controller::Stub::Compress, request, grpc::INVALID_ARGUMENT, "int8 takes KV of bf16");
  request.set_method("zip");
  cluster.client.Refuses(&api::Controller::Stub::Compress, request, grpc::INVALID_ARGUMENT, "method: ");
  request.set_method("int8");
  request.set_tier("dram");
  cluster.client.Refuses(&api::Controller::Stub::Compress, request, grpc::UNIMPLEMENTED, "allowed: ssd, remote:NAME");
  request.set_node("node-z");
  cluster.client.Refuses(&api::Controller::Stub::Compress, request, grpc::NOT_FOUND, "node-z");
}

TEST_CASE("A node that is down, or hangs, costs its own row of an answer, and is found again") {
  Controlled cluster;
  const Client& client = cluster.client;
  for (const DaemonProcess* daemon : {&cluster.a, &cluster.b}) Store(*daemon, 1000);
  CHECK(client.Good(&api::Controller::Stub::Health, api::HealthRequest()).healthy_size() == 2);
  SECTION("it hangs") {
    cluster.b.Signal(SIGSTOP);
    // Within the caller's time, which is far less than a node's.
    grpc::Status status;
    api::LookupReply reply;
    CHECK(Eventually([&] {
      std::tie(status, reply) = client.Ask(&api::Controller::Stub::Lookup, Asking(1000), std::chrono::seconds(4));
      return status.ok();
    }));
    INFO(status.error_message());
    CHECK(CodesOf(reply) == Codes{{"node-a", 0}, {"node-b", grpc::DEADLINE_EXCEEDED}});
    REQUIRE(reply.spaces_size() == 1);
    CHECK(reply.spaces(0).tokens() == kPromptTokens);
    cluster.b.Signal(SIGCONT);
  }
  SECTION("it is down") {
    cluster.b.Kill();
    CHECK(WhereIs(client, 1000) == Where{{"node-a dram", kPromptTokens}});
    const api::HealthReply health = client.Good(&api::Controller::Stub::Health, api::HealthRequest());
    CHECK(CodesOf(health) == Codes{{"node-a", 0}, {"node-b", grpc::UNAVAILABLE}});
    CHECK(health.healthy_size() == 1);
    CHECK_THAT(health.nodes(1).message(), Catch::Contains("doesn't answer at unix:" + cluster.b.admin_socket()));
    api::PinRequest pin = On<api::PinRequest>(1000);
    CHECK(CodesOf(client.Good(&api::Controller::Stub::Pin, pin)) == Codes{{"node-a", 0}, {"node-b", grpc::UNAVAILABLE}});
    pin.set_node("node-b");
    client.Refuses(&api::Controller::Stub::Pin, pin, grpc::UNAVAILABLE, "node-b: ");
    CHECK(client.Good(&api::Controller::Stub::ListNodes, api::ListNodesRequest()).nodes_size() == 2);
    const auto ctl = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.begin(), {BinDir() + "/kvistctl", "--socket", cluster.dir / "controller.sock"});
      std::string out;
      CHECK(kvist::test::RunProgram(arguments, &out) == 0);
      return out;
    };
    const nlohmann::json nodes = nlohmann::json::parse(ctl({"nodes", "-o", "json"}));
    CHECK(nodes["healthy"].size() == 1);
    CHECK(nodes["healthy"][0]["pool_capacity_bytes"] == 8 << 20);
    CHECK(nodes["nodes"][1]["code"] == 14);
    CHECK_THAT(ctl({"nodes"}), Catch::Contains("node-a  ") && Catch::Contains("node-b: doesn't answer"));
    CHECK(client.Good(&api::Controller::Stub::QueryIp, api::QueryIpRequest()).addresses(1).api() ==
          "unix:" + cluster.b.admin_socket());
    cluster.b.Start();
  }
  CHECK(Eventually([&] { return client.Good(&api::Controller::Stub::Health, api::HealthRequest()).healthy_size() == 2; }));
}

TEST_CASE("kvistctl does by way of a controller what it does at one kvistd, and says so node by node") {
  Controlled cluster(kWithDisk);
  for (const DaemonProcess* daemon : {&cluster.a, &cluster.b}) Store(*daemon, 1000);
  const std::string prompt = cluster.dir / "prompt";
  std::ofstream tokens(prompt);
  for (const uint32_t token : FakeEngine::Tokens(1000, kChunks)) tokens << token << " ";
  tokens.close();
  const std::string address = "unix:" + (cluster.dir / "controller.sock");
  const auto ctl = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", BinDir() + "/kvistctl", "--controller", address});
    std::string out;
    const int status = kvist::test::RunProgram(arguments, &out);
    return std::pair(status, out);
  };
  const auto json = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"-o", "json"});
    const auto [status, out] = ctl(arguments);
    INFO(out);
    REQUIRE(status == 0);
    return nlohmann::json::parse(out);
  };
  CHECK(json({"nodes"})["healthy"].size() == 2);
  CHECK(json({"query-ip"})["addresses"][1]["api"] == "unix:" + cluster.b.admin_socket());
  CHECK(json({"lookup", "--tokens", prompt})["spaces"].size() == 2);
  CHECK(json({"lookup", "--tokens", prompt, "--node", "node-b"})["spaces"][0]["node"] == "node-b");
  CHECK_THAT(ctl({"lookup", "--tokens", prompt}).second,
             Catch::Contains("node-a") && Catch::Contains("dram " + std::to_string(kPromptTokens)));

  const auto [dry, would] =
      ctl({"move", "--from", "dram", "--to", "ssd", "--tokens", prompt, "--node", "node-a", "--dry-run"});
  CHECK(dry == 0);
  CHECK_THAT(would, Catch::Contains("This would be moved to ssd") && !Catch::Contains("node-b"));
  const auto [moved, how] = ctl({"move", "--from", "dram", "--to", "ssd", "--tokens", prompt, "--node", "node-a"});
  CHECK(moved == 0);
  CHECK_THAT(how, Catch::Contains("node-a: job 1, move: done, moved 6 chunks"));
  CHECK(WhereIs(cluster.client, 1000) == Where{{"node-a ssd", kPromptTokens}, {"node-b dram", kPromptTokens}});
  const nlohmann::json fetched = json({"prefetch", "--tokens", prompt});
  CHECK(fetched["jobs"].size() == 2);
  CHECK(fetched["jobs"][0]["state"] == "done");
  CHECK(json({"jobs"})["jobs"].size() == 3);
  CHECK(json({"jobs", "watch", "node-a/1"})["chunks"] == kChunks);
  CHECK(json({"jobs", "cancel", "node-a/1"})["state"] == "done");
  CHECK_THAT(ctl({"jobs", "list", "--node", "node-a"}).second, Catch::Contains("node-a/2") && !Catch::Contains("node-b/1"));

  CHECK(json({"pins", "add", "--tokens", prompt, "--owner", "router", "--for", "10m"})["pins"].size() == 2);
  CHECK_THAT(ctl({"pins"}).second, Catch::Contains("node-a/1") && Catch::Contains("node-b/1") && Catch::Contains("router"));
  CHECK_THAT(ctl({"pins", "remove", "node-b/1"}).second, Catch::StartsWith("node-b: removed: 6 chunks of router"));
  CHECK(json({"pins", "list"})["pins"].size() == 1);
  CHECK(ctl({"pins", "remove", "node-b/1"}).first == 1);

  // No node has such a tier.
  for (const std::vector<std::string>& recode :
       {std::vector<std::string>{"compress", "--method", "lossless"}, std::vector<std::string>{"decompress"}}) {
    std::vector<std::string> arguments = recode;
    arguments.insert(arguments.end(), {"--tier", "remote:shared", "--tokens", prompt});
    const auto [status, why] = ctl(arguments);
    CHECK(status == 1);
    CHECK_THAT(why, Catch::Contains("node-a: ") && Catch::Contains("node-b: "));
  }

  CHECK(ctl({"clear", "--tokens", prompt}).first == 2);  // nobody has said yes
  CHECK_THAT(ctl({"clear", "--tokens", prompt, "--yes", "--node", "node-a"}).second,
             Catch::Contains("node-a: cleared 6 chunks"));
  CHECK(WhereIs(cluster.client, 1000) == Where{{"node-b dram", kPromptTokens}});
  cluster.a.Kill();
  const auto [cleared, what] = ctl({"clear", "--yes"});
  CHECK(cleared == 1);
  CHECK_THAT(what, Catch::Contains("node-b: cleared 6 chunks") && Catch::Contains("node-a: doesn't answer"));
  CHECK(WhereIs(cluster.client, 1000) == Where{});

  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"status"}, {"pins", "remove", "1"}, {"quota"}, {"jobs", "watch", "3"}})
    CHECK(ctl(wrong).first == 2);
  const auto [unknown, name] = ctl({"lookup", "--tokens", prompt, "--node", "node-z"});
  CHECK(unknown == 1);
  CHECK_THAT(name, Catch::Contains("no node is called \"node-z\""));
}

TEST_CASE("A controller says which field of a request is wrong, and knows its nodes only") {
  const Controlled cluster;
  const Client& client = cluster.client;
  Store(cluster.a, 1000);
  api::LookupRequest lookup = Asking(1000);
  lookup.add_nodes("node-z");
  client.Refuses(&api::Controller::Stub::Lookup, lookup, grpc::NOT_FOUND, "nodes: no node is called \"node-z\"");
  lookup.set_nodes(0, "own-a");  // that is what it calls itself
  client.Refuses(&api::Controller::Stub::Lookup, lookup, grpc::NOT_FOUND, "nodes: node-a, node-b");
  lookup.set_nodes(0, "not/a name");
  client.Refuses(&api::Controller::Stub::Lookup, lookup, grpc::INVALID_ARGUMENT, "nodes: ");
  client.Refuses(&api::Controller::Stub::Clear, OnNode<api::ClearRequest>("node-z", 1000), grpc::NOT_FOUND, "node: no node");
  for (const char* id : {"node-z/1", "node-a/17"}) {
    api::GetJobRequest get;
    get.set_job(id);
    client.Refuses(&api::Controller::Stub::GetJob, get, grpc::NOT_FOUND, "job: ");
  }

  client.Refuses(&api::Controller::Stub::Lookup, api::LookupRequest(), grpc::INVALID_ARGUMENT,
                 "prompt: it has neither tokens nor keys");
  api::LookupRequest huge;
  for (uint32_t i = 0; i < 3'000'000; ++i) huge.mutable_prompt()->add_tokens(100'000 + i % 50'000);
  client.Refuses(&api::Controller::Stub::Lookup, huge, grpc::INVALID_ARGUMENT, "prompt.tokens: 3000000 tokens");
  // What a model takes at most is no problem: a million tokens.
  huge.mutable_prompt()->mutable_tokens()->Truncate(1'000'000);
  CHECK(client.Good(&api::Controller::Stub::Lookup, huge).spaces(0).tokens() == 0);
  api::LookupRequest wrong = Asking(1000);
  wrong.mutable_space()->set_digest("xyz");
  client.Refuses(&api::Controller::Stub::Lookup, wrong, grpc::INVALID_ARGUMENT, "space.digest: \"xyz\"");
}

TEST_CASE("Two controllers beside each other start one job for one request") {
  const Controlled cluster(kWithDisk);
  Store(cluster.a, 1000);
  const ChildProcess second_process = cluster.Start(cluster.dir / "second.sock");
  const Client second(cluster.dir / "second.sock");
  std::vector<std::string> ids[2];
  std::vector<std::thread> callers;
  for (int c = 0; c < 2; ++c) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) {
        const auto [status, reply] = (c == 0 ? cluster.client : second)
                                         .Ask(&api::Controller::Stub::Move, ToDisk("node-a", 1000, "r" + std::to_string(i)));
        ids[c].push_back(status.ok() && reply.jobs_size() == 1 ? reply.jobs(0).id() : status.error_message());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(ids[0] == ids[1]);
  CHECK(cluster.client.Good(&api::Controller::Stub::ListJobs, api::ListJobsRequest()).jobs_size() == 20);
  // One sees what was done through the other.
  CHECK(second.Watch(ids[0].back()).state() == "done");
  CHECK(WhereIs(second, 1000) == Where{{"node-a ssd", kPromptTokens}});
}

TEST_CASE("WatchJob across a controller ends with the job, or with the watcher's time") {
  Controlled cluster;
  const Client& client = cluster.client;
  Store(cluster.a, 1000);
  api::ClearRequest everything;
  everything.set_everything(true);
  everything.set_node("node-a");
  const std::string id = client.Good(&api::Controller::Stub::Clear, everything).jobs(0).id();
  CHECK(client.Watch(id).state() == "done");

  cluster.a.Signal(SIGSTOP);
  api::WatchJobRequest request;
  request.set_job(id);
  grpc::ClientContext context;
  context.set_deadline(In(std::chrono::milliseconds(500)));
  const auto stream = client.stub().WatchJob(&context, request);
  api::Job job;
  CHECK_FALSE(stream->Read(&job));
  CHECK(stream->Finish().error_code() == grpc::DEADLINE_EXCEEDED);
  cluster.a.Signal(SIGCONT);
  request.set_job("node-a/999");
  grpc::ClientContext unknown;
  CHECK(client.stub().WatchJob(&unknown, request)->Finish().error_code() == grpc::NOT_FOUND);
}

TEST_CASE("Each kvistd is the controller of itself on its admin socket") {
  const Cluster cluster;
  const Client client(cluster.a.admin_socket());
  Store(cluster.a, 1000);
  const api::ListNodesReply nodes = client.Good(&api::Controller::Stub::ListNodes, api::ListNodesRequest());
  REQUIRE(nodes.nodes_size() == 1);
  CHECK(nodes.nodes(0).name() == "own-a");
  CHECK(WhereIs(client, 1000) == Where{{"own-a dram", kPromptTokens}});
  api::PinRequest pin = On<api::PinRequest>(1000);
  CHECK(client.Good(&api::Controller::Stub::Pin, pin).pins(0).id() == "own-a/1");
  const api::JobsReply cleared = client.Good(&api::Controller::Stub::Clear, On<api::ClearRequest>(1000));
  CHECK(client.Watch(cleared.jobs(0).id()).chunks() == kChunks);
  CHECK(WhereIs(client, 1000) == Where{});
  client.Refuses(&api::Controller::Stub::Move, ToDisk("own-a", 1000), grpc::FAILED_PRECONDITION, "no SSD tier");
  pin.mutable_space()->set_model("another");
  client.Refuses(&api::Controller::Stub::Pin, pin, grpc::NOT_FOUND, "own-a: space: no space fits");
  CHECK(client.Good(&api::Controller::Stub::Health, api::HealthRequest()).healthy(0).pool_capacity_bytes() == 8 << 20);
}

TEST_CASE("kvist-controller reads its nodes from a file, is found by reflection and health checks, and stops cleanly") {
  const Cluster cluster;
  const std::string file = cluster.dir / "controller.toml", socket = cluster.dir / "c.sock";
  std::ofstream(file) << "[controller]\nsocket = \"" << socket << "\"\n[nodes]\nred = \"unix:" << cluster.a.admin_socket()
                      << "\"\n";
  ChildProcess process = StartController({"--config", file, "--node", "blue=unix:" + cluster.b.admin_socket()});
  const Client client(socket);
  struct stat found {};
  REQUIRE(::stat(socket.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0660);
  const api::ListNodesReply nodes = client.Good(&api::Controller::Stub::ListNodes, api::ListNodesRequest());
  REQUIRE(nodes.nodes_size() == 2);
  CHECK(nodes.nodes(0).name() == "blue");

  // As bytes: their messages are no part of what grpc++ installs.
  const auto exchange = [&client](const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(client.channel());
    grpc::ClientContext context;
    context.set_deadline(In(kTime));
    grpc::CompletionQueue steps;
    const auto step = [&steps] {
      void* tag = nullptr;
      bool ok = false;
      return steps.Next(&tag, &ok) && ok;
    };
    const auto stream = stub.PrepareCall(&context, method, &steps);
    stream->StartCall(nullptr);
    REQUIRE(step());
    const grpc::Slice request(bytes);
    stream->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
    REQUIRE(step());
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    REQUIRE(step());
    grpc::Slice said;
    REQUIRE(answer.DumpToSingleSlice(&said).ok());
    grpc::Status status;
    stream->Finish(&status, nullptr);
    CHECK(step());
    CHECK(status.ok());
    return std::string(reinterpret_cast<const char*>(said.begin()), said.size());
  };
  CHECK(exchange("/grpc.health.v1.Health/Check", "") == "\x08\x01");  // SERVING
  CHECK_THAT(exchange("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                      std::string("\x3a\x00", 2)),  // list_services
             Catch::Contains("kvist.controller.v1.Controller"));

  process.Signal(SIGTERM);
  CHECK(process.Wait() == 0);
  CHECK(::access(socket.c_str(), F_OK) != 0);
}

TEST_CASE("kvist-controller refuses a configuration that it doesn't understand, and says that TCP takes TLS") {
  const TempDir dir;
  const auto said = [](std::vector<std::string> arguments, int expected) {
    arguments.insert(arguments.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", BinDir() + "/kvist-controller"});
    std::string out;
    CHECK(kvist::test::RunProgram(arguments, &out) == expected);
    return out;
  };
  CHECK_THAT(said({"--help"}, 0), Catch::Contains("by TLS only"));
  CHECK_THAT(said({}, 2), Catch::Contains("nodes: there are none"));
  CHECK_THAT(said({"--node", "a=10.0.0.1:7070"}, 2), Catch::Contains("nodes.a") && Catch::Contains("tls:HOST:PORT"));
  const std::string file = dir / "c.toml";
  std::ofstream(file) << "[nodes]\n\"a b\" = \"unix:/a\"\n[controller]\nsocket_mode = \"0999\"\n[other]\n";
  const std::string refusal = said({"--config", file}, 2);
  CHECK_THAT(refusal, Catch::Contains(file + ":2:1: nodes.a b") && Catch::Contains(file + ":4:1: controller.socket_mode") &&
                          Catch::Contains(file + ":5:"));
  CHECK_THAT(said({"--socket", dir / "none/there/c.sock", "--node", "a=unix:/a"}, 1), Catch::Contains("can't make"));
}
