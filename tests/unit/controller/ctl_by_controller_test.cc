// kvistctl by way of a controller whose nodes don't all do what they are asked.
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/controller/controller_service.h"
#include "daemon/controller/local_node.h"
#include "daemon/ctl/commands.h"
#include "daemon/rpc/admin_server.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::ctl {
namespace {

using Catch::Contains;
using Catch::StartsWith;

// A controller of "a" and "b", and kvistctl.
struct Controlled {
  struct Said {
    int code;
    std::string out, err;
    nlohmann::json json() const { return nlohmann::json::parse(out); }
  };
  test::TempDir dir;
  FakeNode a, b;
  std::unique_ptr<rpc::AdminServer> server = Serve();
  // Between two looks at jobs: how many there have been.
  std::function<void(int looks)> meanwhile = nullptr;

  Said Ctl(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"--controller", "unix:" + dir / "c.sock"});
    std::ostringstream out, err;
    int looks = 0;
    const auto wait = [&](absl::Duration pause) {
      if (meanwhile) meanwhile(++looks);
      absl::SleepFor(pause);
      return true;
    };
    const Terminal terminal{.out = out, .err = err, .ask = nullptr, .size = nullptr, .wait = wait};
    const int code = Run(arguments, terminal);
    return {code, out.str(), err.str()};
  }
  // A prompt of four chunks.
  std::vector<std::string> OfPrompt(std::vector<std::string> arguments) const {
    std::ofstream tokens(dir / "prompt");
    for (int i = 0; i < 64; ++i) tokens << i << " ";
    arguments.insert(arguments.end(), {"--tokens", dir / "prompt"});
    return arguments;
  }

 private:
  std::unique_ptr<rpc::AdminServer> Serve() {
    std::vector<controller::NamedNode> nodes;
    nodes.push_back({"a", controller::MakeLocalNode(&a)});
    nodes.push_back({"b", controller::MakeLocalNode(&b)});
    rpc::AdminServer::Options options{.socket = dir / "c.sock", .mode = 0600, .group = ""};
    options.services.push_back(controller::MakeControllerService(controller::Nodes::Create(std::move(nodes)).value()));
    return rpc::AdminServer::Create(std::move(options)).value();
  }
};

TEST_CASE("kvistctl waits for every node's jobs, and blames the node that fails and nobody else") {
  Controlled nodes;
  nodes.a.ClearsGoOn();
  nodes.b.ClearsGoOn();
  SECTION("a node goes away") {
    nodes.meanwhile = [&](int looks) {
      if (looks == 1) nodes.a.Fail(absl::UnavailableError("has gone"));
      if (looks == 3) nodes.b.EndJobs();
    };
    const auto said = nodes.Ctl({"clear", "--yes", "-o", "json"});
    CHECK(said.code == kRefused);
    CHECK(said.json()["nodes"][0]["code"] == 14);
    CHECK(said.json()["nodes"][0]["message"] == "job a/1 goes on, unless it has ended: has gone");
    CHECK(said.json()["nodes"][1]["code"] == 0);
    CHECK(said.json()["jobs"][1]["state"] == "done");
    CHECK(said.err == "kvistctl: a: job a/1 goes on, unless it has ended: has gone\n");
  }
  SECTION("a node's job goes on") {
    nodes.meanwhile = [&](int looks) {
      if (looks == 2) nodes.b.EndJobs();
    };
    const auto said = nodes.Ctl({"clear", "--yes", "-o", "json", "--timeout", "2s"});
    CHECK(said.code == kUnavailable);
    CHECK(said.json()["nodes"][0]["code"] == 4);
    CHECK(said.json()["nodes"][1]["code"] == 0);
    CHECK(said.json()["jobs"][0]["state"] == "running");
    CHECK(said.json()["jobs"][1]["state"] == "done");
    CHECK_THAT(said.err, StartsWith("kvistctl: a: job a/1 goes on: ") && Contains("jobs watch a/1"));
  }
  SECTION("a node's job is cancelled") {
    nodes.meanwhile = [&](int looks) {
      if (looks == 1) CHECK(nodes.a.CancelJob(1, absl::InfiniteFuture()).ok());
      if (looks == 2) nodes.b.EndJobs();
    };
    const auto said = nodes.Ctl({"clear", "--yes"});
    CHECK(said.code == kRefused);
    CHECK(said.err == "kvistctl: a: job a/1 was cancelled\n");
    CHECK_THAT(said.out, Contains("a: job 1, clear: cancelled") && Contains("b: cleared 0 chunks"));
  }
  SECTION("a node of which there are several jobs") {
    nodes.meanwhile = [&](int looks) {
      if (looks == 1) CHECK(nodes.a.CancelJob(2, absl::InfiniteFuture()).ok());
      if (looks == 2) nodes.a.EndJobs();
      if (looks == 3) nodes.b.EndJobs();
    };
    const auto said = nodes.Ctl(nodes.OfPrompt({"clear", "--yes", "-o", "json"}));
    CHECK(said.code == kRefused);
    REQUIRE(said.json()["jobs"].size() == 4);
    CHECK(said.json()["jobs"][0]["state"] == "done");
    CHECK(said.json()["jobs"][1]["state"] == "cancelled");
    CHECK(said.json()["jobs"][3]["state"] == "done");
    CHECK(said.err == "kvistctl: a: job a/2 was cancelled\n");
  }
  SECTION("none fails") {
    nodes.meanwhile = [&](int) {
      nodes.a.EndJobs();
      nodes.b.EndJobs();
    };
    const auto said = nodes.Ctl({"clear", "--yes"});
    CHECK(said.code == kOk);
    CHECK(said.err == "");
  }
}

TEST_CASE("kvistctl says of a change of one node that it is the node that doesn't answer") {
  Controlled nodes;
  nodes.a.ClearsGoOn();
  REQUIRE(nodes.a.Clear({}, "", absl::InfiniteFuture()).ok());
  nodes.a.Fail(absl::UnavailableError("has gone"));
  for (const std::vector<std::string>& change :
       {std::vector<std::string>{"clear", "--yes", "--node", "a"}, nodes.OfPrompt({"pins", "add", "--node", "a"}),
        std::vector<std::string>{"jobs", "cancel", "a/1"}}) {
    INFO(change[0]);
    const auto said = nodes.Ctl(change);
    CHECK(said.code == kRefused);
    CHECK_THAT(said.err, StartsWith("kvistctl: a: has gone"));
  }
  const auto watched = nodes.Ctl({"jobs", "watch", "a/1"});
  CHECK(watched.code == kUnavailable);
  CHECK(watched.err == "kvistctl: a: has gone; job a/1 goes on\n");
  // Of several, the others have done it.
  const auto pinned = nodes.Ctl(nodes.OfPrompt({"pins", "add", "-o", "json"}));
  CHECK(pinned.code == kRefused);
  CHECK(pinned.json()["pins"][0]["node"] == "b");
  CHECK(pinned.err == "kvistctl: a: has gone\n");
}

TEST_CASE("kvistctl's questions are answered when one node has answered, and the others are named") {
  Controlled nodes;
  const std::vector<std::vector<std::string>> questions{
      {"nodes"},
      {"jobs"},
      {"pins"},
      nodes.OfPrompt({"lookup"}),
      nodes.OfPrompt({"move", "--from", "ssd", "--to", "dram", "--dry-run"})};
  for (const std::vector<std::string>& question : questions) {
    INFO(question[0]);
    nodes.a.Fail(absl::OkStatus());
    nodes.b.Fail(absl::OkStatus());
    auto said = nodes.Ctl(question);
    CHECK(said.code == kOk);
    CHECK(said.err == "");
    nodes.b.Fail(absl::UnavailableError("has gone"));
    said = nodes.Ctl(question);
    CHECK(said.code == kOk);
    CHECK(said.err == "kvistctl: b: has gone\n");
    nodes.a.Fail(absl::DeadlineExceededError("is late"));
    said = nodes.Ctl(question);
    CHECK(said.code == kUnavailable);
    CHECK(said.err == "kvistctl: a: is late\nkvistctl: b: has gone\n");
    nodes.b.Fail(absl::PermissionDeniedError("not you"));
    CHECK(nodes.Ctl(question).code == kRefused);
  }
  // That nothing fits is an answer.
  nodes.a.Fail(absl::OkStatus());
  nodes.b.Fail(absl::OkStatus());
  const auto none = nodes.Ctl(nodes.OfPrompt({"lookup", "--model", "another"}));
  CHECK(none.code == kOk);
  CHECK(none.err == "");
}

}  // namespace
}  // namespace kvist::ctl
