// A kvist-controller that follows two real kvistds: what its directory says of them is what they say themselves, a moment later.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 6;  // of a prompt
constexpr uint32_t kPromptTokens = kChunks * FakeEngine::kChunkTokens;
constexpr std::chrono::seconds kTime(20);
const std::vector<std::string> kInDram{"pool.bytes=8MiB", "ssd.enabled=false"};

// "node tier" -> tokens of a prompt there.
using Where = std::map<std::string, uint64_t>;

// A kvist-controller and a client of it.
class Controller {
 public:
  Controller(const std::string& socket, const DaemonProcess& a, const DaemonProcess& b)
      : process_(
            [=, nodes = std::vector<std::string>{"node-a=unix:" + a.admin_socket(), "node-b=unix:" + b.admin_socket()}] {
              const std::string program = BinDir() + "/kvist-controller";
              if (freopen("/dev/null", "w", stdout) == nullptr) return 98;  // READY
              execl(program.c_str(), program.c_str(), "--socket", socket.c_str(), "--node", nodes[0].c_str(), "--node",
                    nodes[1].c_str(), nullptr);
              return 97;
            }),
        channel_(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials())),
        stub_(api::Controller::NewStub(channel_)) {
    REQUIRE(channel_->WaitForConnected(std::chrono::system_clock::now() + kTime));
  }

  template <class Request, class Reply>
  Reply Ask(grpc::Status (api::Controller::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
            const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTime);
    Reply reply;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return reply;
  }
  api::LookupReply Lookup(uint32_t prompt, bool ask_nodes = false) const {
    api::LookupRequest request;
    for (const uint32_t token : FakeEngine::Tokens(prompt, kChunks)) request.mutable_prompt()->add_tokens(token);
    request.set_ask_nodes(ask_nodes);
    return Ask(&api::Controller::Stub::Lookup, request);
  }
  // What the directory says, if it knows of both nodes.
  std::optional<Where> Told(uint32_t prompt) const {
    const api::LookupReply reply = Lookup(prompt);
    for (const api::Outcome& node : reply.nodes()) {
      if (!node.by_directory()) return std::nullopt;
    }
    return WhereIn(reply);
  }
  // What the nodes say.
  Where Is(uint32_t prompt) const {
    const api::LookupReply reply = Lookup(prompt, /*ask_nodes=*/true);
    for (const api::Outcome& node : reply.nodes()) CHECK_FALSE(node.by_directory());
    return WhereIn(reply);
  }
  bool SoonTold(uint32_t prompt, const Where& where) const {
    return Eventually([&] { return Told(prompt) == where; });
  }
  std::map<std::string, api::Followed> Followed() const {
    std::map<std::string, api::Followed> followed;
    const api::ListNodesReply reply = Ask(&api::Controller::Stub::ListNodes, api::ListNodesRequest());
    for (const auto& node : reply.nodes()) followed[node.name()] = node.followed();
    return followed;
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  static Where WhereIn(const api::LookupReply& reply) {
    Where where;
    for (const api::LookupReply::InSpace& space : reply.spaces())
      for (const auto& tier : space.tiers()) where[space.node() + " " + tier.tier()] += tier.tokens();
    return where;
  }

  ChildProcess process_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<api::Controller::Stub> stub_;
};

struct Cluster {
  explicit Cluster(const std::vector<std::string>& settings = kInDram)
      : a(Made("a"), With(settings)), b(Made("b"), With(settings)) {}

  TempDir dir;
  DaemonProcess a, b;
  std::unique_ptr<Controller> controller = std::make_unique<Controller>(dir / "controller.sock", a, b);

 private:
  std::string Made(const std::string& name) {
    const std::string path = dir / name;
    REQUIRE(::mkdir(path.c_str(), 0755) == 0);
    return path;
  }
  static std::vector<std::string> With(std::vector<std::string> settings) {
    settings.push_back("pool.touch_threads=0");
    return settings;
  }
};

void Store(const DaemonProcess& daemon, uint32_t prompt) {
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  REQUIRE(engine.StoreAll(engine.Keys(prompt, kChunks)).status == KVIST_OK);
}

}  // namespace

TEST_CASE("What is stored and cleared on nodes is soon in the directory, and nobody is asked") {
  const Cluster cluster;
  const Controller& controller = *cluster.controller;
  Store(cluster.a, 1000);
  Store(cluster.b, 1007);  // begins with the first two chunks of the other
  CHECK(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}, {"node-b dram", 2 * FakeEngine::kChunkTokens}}));
  CHECK(controller.Told(5000) == Where{});
  const api::LookupReply told = controller.Lookup(1000), asked = controller.Lookup(1000, /*ask_nodes=*/true);
  REQUIRE(told.spaces_size() == 2);
  REQUIRE(asked.spaces_size() == 2);
  for (int i = 0; i < 2; ++i) CHECK(told.spaces(i).SerializeAsString() == asked.spaces(i).SerializeAsString());
  CHECK(told.nodes(0).as_of_ms() < 3000);

  api::ClearRequest prompt;
  for (const uint32_t token : FakeEngine::Tokens(1000, kChunks)) prompt.mutable_prompt()->add_tokens(token);
  prompt.set_node("node-a");
  controller.Ask(&api::Controller::Stub::Clear, prompt);
  CHECK(controller.SoonTold(1000, {{"node-b dram", 2 * FakeEngine::kChunkTokens}}));
  api::ClearRequest everything;
  everything.set_everything(true);
  controller.Ask(&api::Controller::Stub::Clear, everything);
  CHECK(controller.SoonTold(1000, {}));
  CHECK(controller.SoonTold(1007, {}));
  Store(cluster.a, 1000);
  CHECK(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}}));
}

TEST_CASE("The directory is told of tiers") {
  Cluster cluster({"pool.bytes=8MiB", "ssd.enabled=true", "ssd.capacity=256MiB"});
  const Controller& controller = *cluster.controller;
  Store(cluster.a, 1000);
  CHECK(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}}));
  api::MoveRequest move;
  for (const uint32_t token : FakeEngine::Tokens(1000, kChunks)) move.mutable_prompt()->add_tokens(token);
  move.mutable_source()->set_node("node-a");
  move.mutable_source()->set_tier("dram");
  move.mutable_destination()->set_tier("ssd");
  controller.Ask(&api::Controller::Stub::Move, move);
  CHECK(controller.SoonTold(1000, {{"node-a ssd", kPromptTokens}}));
  // A node that dies and finds on its disk what it had says so, under another epoch.
  cluster.a.Kill();
  cluster.a.Start();
  CHECK(controller.SoonTold(1000, {{"node-a ssd", kPromptTokens}}));
}

TEST_CASE("A node that is killed is asked, and told anew when it is back; others go on") {
  Cluster cluster;
  const Controller& controller = *cluster.controller;
  Store(cluster.a, 1000);
  Store(cluster.b, 1000);
  REQUIRE(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}, {"node-b dram", kPromptTokens}}));
  cluster.a.Kill();
  CHECK(Eventually([&] {
    const api::LookupReply reply = controller.Lookup(1000);
    return reply.nodes(0).code() == grpc::UNAVAILABLE && !reply.nodes(0).by_directory() && reply.nodes(1).by_directory() &&
           reply.spaces_size() == 1 && reply.spaces(0).node() == "node-b";
  }));
  CHECK_FALSE(controller.Followed().at("node-a").fresh());
  CHECK(controller.Followed().at("node-a").why_not() != "");
  cluster.a.Start();
  CHECK(controller.SoonTold(1000, {{"node-b dram", kPromptTokens}}));
  Store(cluster.a, 1000);
  CHECK(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}, {"node-b dram", kPromptTokens}}));
}

TEST_CASE("A node that hangs is asked when it wasn't heard for three seconds, and followed again when it goes on") {
  const Cluster cluster;
  const Controller& controller = *cluster.controller;
  Store(cluster.a, 1000);
  REQUIRE(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}}));
  cluster.a.Signal(SIGSTOP);
  CHECK(Eventually([&] { return !controller.Followed().at("node-a").fresh(); }));
  CHECK(controller.Followed().at("node-a").as_of_ms() >= 3000);
  CHECK(controller.Followed().at("node-b").fresh());
  cluster.a.Signal(SIGCONT);
  CHECK(controller.SoonTold(1000, {{"node-a dram", kPromptTokens}}));
}

TEST_CASE("Controllers come and go and say the same, for the nodes tell them all") {
  Cluster cluster;
  FakeEngine engine(FakeEngine::On(cluster.a.socket()));
  for (uint32_t prompt = 1; prompt <= 40; ++prompt)  // more than there is room for
    REQUIRE(engine.StoreAll(engine.Keys(prompt * 1000, kChunks)).status == KVIST_OK);
  const Controller second(cluster.dir / "second.sock", cluster.a, cluster.b);
  const auto same = [&](const Controller& controller) {
    for (uint32_t prompt = 1; prompt <= 40; ++prompt) {
      INFO("prompt " << prompt);
      CHECK(controller.SoonTold(prompt * 1000, controller.Is(prompt * 1000)));
    }
    const std::map<std::string, api::Followed> followed = controller.Followed();
    CHECK(followed.at("node-a").fresh());
    CHECK(followed.at("node-a").chunks() > kChunks);
    CHECK(followed.at("node-b").chunks() == 0);
  };
  same(*cluster.controller);
  same(second);
  cluster.controller.reset();
  cluster.controller = std::make_unique<Controller>(cluster.dir / "controller.sock", cluster.a, cluster.b);
  same(*cluster.controller);
}

TEST_CASE("A kvistd over itself asks itself") {
  const Cluster cluster;
  Store(cluster.a, 1000);
  const auto channel = grpc::CreateChannel("unix:" + cluster.a.admin_socket(), grpc::InsecureChannelCredentials());
  const auto stub = api::Controller::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTime);
  api::LookupRequest request;
  for (const uint32_t token : FakeEngine::Tokens(1000, kChunks)) request.mutable_prompt()->add_tokens(token);
  api::LookupReply reply;
  REQUIRE(stub->Lookup(&context, request, &reply).ok());
  CHECK(reply.spaces(0).tokens() == kPromptTokens);
  CHECK_FALSE(reply.nodes(0).by_directory());
}

TEST_CASE("kvistctl nodes shows what of each node is told") {
  const Cluster cluster;
  Store(cluster.a, 1000);
  REQUIRE(cluster.controller->SoonTold(1000, {{"node-a dram", kPromptTokens}}));
  std::string out;
  const std::string socket = cluster.dir / "controller.sock";
  REQUIRE(kvist::test::RunProgram({BinDir() + "/kvistctl", "--socket", socket, "nodes"}, &out) == 0);
  INFO(out);
  CHECK_THAT(out, Catch::Contains("TOLD") && Catch::Contains(" ago"));
  REQUIRE(kvist::test::RunProgram({BinDir() + "/kvistctl", "--socket", socket, "-o", "json", "nodes"}, &out) == 0);
  CHECK_THAT(out, Catch::Contains("\"fresh\": true") && Catch::Contains("as_of_ms"));
}
