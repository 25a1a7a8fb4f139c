// A controller over nodes that a test steers, without the wire.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/controller/controller.h"
#include "daemon/controller/local_node.h"
#include "storage/base/clock.h"
#include "tests/unit/controller/held_node.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::controller {
namespace {

absl::Time Soon() { return MonotonicNow() + absl::Milliseconds(50); }
absl::Time Later() { return MonotonicNow() + absl::Seconds(60); }

Nodes Of(std::vector<NamedNode> nodes) {
  absl::StatusOr<Nodes> made = Nodes::Create(std::move(nodes));
  REQUIRE(made.ok());
  return *std::move(made);
}

// "a" and "b", of this process.
struct Two {
  FakeNode a, b;
  Controller controller{Of(Both())};

  std::vector<NamedNode> Both() {
    std::vector<NamedNode> nodes;
    nodes.push_back({"a", MakeLocalNode(&a)});
    nodes.push_back({"b", MakeLocalNode(&b)});
    return nodes;
  }
};

// "a" of this process, and "far".
struct OneFar {
  FakeNode a;
  HeldNode* far = nullptr;
  Controller controller{Of(Both())};

  std::vector<NamedNode> Both() {
    std::vector<NamedNode> nodes;
    nodes.push_back({"a", MakeLocalNode(&a)});
    auto held = std::make_unique<HeldNode>();
    far = held.get();
    nodes.push_back({"far", std::move(held)});
    return nodes;
  }
};

template <class Request>
Request On(int tokens = 64) {
  Request request;
  for (int i = 0; i < tokens; ++i) request.mutable_prompt()->add_tokens(static_cast<uint32_t>(i));
  return request;
}

template <class Reply>
std::vector<int> Codes(const Reply& reply) {
  std::vector<int> codes;
  for (const v1::Outcome& outcome : reply.nodes()) codes.push_back(outcome.code());
  return codes;
}

void IsError(const absl::Status& status, absl::StatusCode code, const std::string& begins) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK(absl::StartsWith(status.message(), begins));
}

TEST_CASE("Nodes have names of their own, and say which there are") {
  const auto named = [](std::vector<std::string> names) {
    std::vector<NamedNode> nodes;
    for (std::string& name : names) nodes.push_back({std::move(name), std::make_unique<HeldNode>()});
    return Nodes::Create(std::move(nodes));
  };
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{}, {"a", "a"}, {""}, {"a/b"}})
    CHECK(named(wrong).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(named(std::vector<std::string>(Nodes::kNodesMax + 1, "a")).ok());
  const auto nodes = named({"b", "a", "c"});
  REQUIRE(nodes.ok());
  CHECK(nodes->all()[0]->name == "b");
  CHECK((*nodes->Find("node", "a"))->name == "a");
  IsError(nodes->Find("node", "d").status(), absl::StatusCode::kNotFound, "node: no node is called \"d\"; nodes: b, a, c");
  IsError(nodes->Find("node", "d/\n").status(), absl::StatusCode::kInvalidArgument, "node: \"d/\\n\"");
  const auto some = nodes->Those("nodes", std::vector<std::string>{"c", "b", "c"});
  REQUIRE(some.ok());
  REQUIRE(some->size() == 2);
  CHECK((*some)[0]->name == "b");
  CHECK((*some)[1]->name == "c");
  CHECK(nodes->OneOrAll("node", "")->size() == 3);
  CHECK_FALSE(nodes->Those("nodes", std::vector<std::string>{"c", ""}).ok());
}

TEST_CASE("Controller asks all nodes, or those that are named, and says how each has answered") {
  Two two;
  const auto both = two.controller.Lookup(On<v1::LookupRequest>(), Later());
  REQUIRE(both.ok());
  CHECK(Codes(*both) == std::vector<int>{0, 0});
  REQUIRE(both->spaces_size() == 4);
  CHECK(both->spaces(3).node() == "b");
  CHECK(both->spaces(0).tokens() == 32);
  REQUIRE(both->spaces(0).tiers_size() == 2);
  CHECK(both->spaces(0).tiers(1).tier() == "ssd");
  CHECK(both->spaces(0).tiers(1).tokens() == 16);

  two.a.Fail(absl::InternalError("broken"));
  v1::LookupRequest request = On<v1::LookupRequest>();
  const auto one = two.controller.Lookup(request, Later());
  REQUIRE(one.ok());
  CHECK(Codes(*one) == std::vector<int>{13, 0});
  CHECK(one->nodes(0).message() == "broken");
  CHECK(one->spaces_size() == 2);
  // A question to one node that fails is answered, a change isn't.
  request.add_nodes("a");
  CHECK(Codes(two.controller.Lookup(request, Later()).value()) == std::vector<int>{13});
  v1::PinRequest pin = On<v1::PinRequest>();
  CHECK(Codes(two.controller.Pin(pin, Later()).value()) == std::vector<int>{13, 0});
  pin.set_node("a");
  IsError(two.controller.Pin(pin, Later()).status(), absl::StatusCode::kInternal, "a: broken");
}

TEST_CASE("Controller gives a node 5 s, or four fifths of what the caller has") {
  Two two;
  REQUIRE(two.controller.Health({}, Later()).ok());
  CHECK(two.a.given() <= absl::Seconds(5));
  CHECK(two.a.given() > absl::Seconds(1));
  REQUIRE(two.controller.Health({}, MonotonicNow() + absl::Seconds(5)).ok());
  CHECK(two.a.given() <= absl::Seconds(4));
  two.a.Hang();
  const auto health = two.controller.Health({}, Soon());
  REQUIRE(health.ok());
  CHECK(Codes(*health)[0] == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
}

TEST_CASE("Controller waits for no node beyond its time, and an answer that comes later does no harm") {
  OneFar nodes;
  const auto health = nodes.controller.Health({}, Soon());
  REQUIRE(health.ok());
  CHECK(Codes(*health) == std::vector<int>{0, 4});
  CHECK(health->nodes(1).message() == "no answer in time");
  CHECK(health->healthy_size() == 1);
  nodes.far->Answer(absl::UnavailableError("too late"));

  v1::GetJobRequest get;
  get.set_job("far/1");
  IsError(nodes.controller.GetJob(get, Soon()).status(), absl::StatusCode::kDeadlineExceeded, "far: ");
}

TEST_CASE("Controller asks all nodes before it waits for any") {
  std::vector<NamedNode> named;
  HeldNode* far[2] = {};
  for (HeldNode*& node : far) {
    auto held = std::make_unique<HeldNode>();
    node = held.get();
    named.push_back({named.empty() ? "near" : "far", std::move(held)});
  }
  const Controller controller{Of(std::move(named))};
  absl::StatusOr<v1::HealthReply> answered;
  std::thread caller([&] { answered = controller.Health({}, Later()); });
  CHECK((far[0]->IsAsked() && far[1]->IsAsked()));
  far[1]->Answer(absl::UnavailableError("gone"));
  far[0]->Answer(absl::InternalError("broken"));
  caller.join();
  REQUIRE(answered.ok());
  CHECK(Codes(*answered) == std::vector<int>{13, 14});
}

TEST_CASE("Controller moves within a node, and says that nothing moves between two") {
  Two two;
  v1::MoveRequest move = On<v1::MoveRequest>();
  move.mutable_source()->set_tier("dram");
  move.mutable_destination()->set_tier("ssd");
  move.set_keep_source(true);
  move.set_request("r");
  const auto on_all = two.controller.Move(move, Later());
  REQUIRE(on_all.ok());
  CHECK(on_all->jobs_size() == 4);
  CHECK(on_all->jobs(2).id() == "b/1");
  CHECK(on_all->jobs(2).request() == "r");
  REQUIRE(two.b.moves().size() == 1);
  CHECK(two.b.moves()[0].from == rpc::Tier::kDram);
  CHECK(two.b.moves()[0].keep_source);
  move.mutable_source()->set_node("a");
  move.mutable_destination()->set_node("a");
  CHECK(two.controller.Move(move, Later())->jobs_size() == 2);
  CHECK(two.b.moves().size() == 1);

  move.mutable_destination()->set_node("b");
  IsError(two.controller.Move(move, Later()).status(), absl::StatusCode::kUnimplemented, "destination.node: \"b\"");
  move.mutable_source()->clear_node();
  IsError(two.controller.Move(move, Later()).status(), absl::StatusCode::kInvalidArgument, "source.node: empty");
  move.mutable_destination()->set_node("c");
  IsError(two.controller.Move(move, Later()).status(), absl::StatusCode::kNotFound, "destination.node: ");
  move.mutable_destination()->clear_node();
  move.mutable_destination()->set_tier("dram");
  IsError(two.controller.Move(move, Later()).status(), absl::StatusCode::kInvalidArgument, "destination.tier: dram");
  move.mutable_source()->set_tier("remote:redis");
  move.mutable_source()->set_node("a");
  move.mutable_destination()->set_tier("remote:s3");
  IsError(two.controller.Move(move, Later()).status(), absl::StatusCode::kUnimplemented, "destination.tier: \"remote:s3\"");
  CHECK(two.a.moves().size() == 2);

  v1::PrefetchRequest prefetch = On<v1::PrefetchRequest>();
  prefetch.set_node("b");
  CHECK(two.controller.Prefetch(prefetch, Later())->jobs(0).kind() == "prefetch");
  prefetch.set_tier("dram");
  IsError(two.controller.Prefetch(prefetch, Later()).status(), absl::StatusCode::kInvalidArgument, "tier: dram");
}

TEST_CASE("Controller clears what a filter fits, space by space, and nothing that nobody named") {
  Two two;
  v1::ClearRequest clear;
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kInvalidArgument, "prompt: there is none");
  clear.mutable_space()->set_tenant("blue");
  clear.set_request("r");
  clear.mutable_prompt();  // a tokenizer that made nothing of its text, say: not all that tenant has
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kInvalidArgument, "prompt: it has neither");
  CHECK(two.a.cleared().empty());
  clear.clear_prompt();
  const auto blue = two.controller.Clear(clear, Later());
  REQUIRE(blue.ok());
  CHECK(blue->jobs_size() == 2);
  CHECK(two.a.cleared() == std::vector<std::string>{FakeNode::kSpaceA});
  CHECK(two.a.jobs()[0].request == "r:aaaa111111111111");
  clear.mutable_space()->set_digest("AA");
  clear.mutable_space()->clear_tenant();
  clear.set_node("b");
  CHECK(two.controller.Clear(clear, Later())->jobs_size() == 2);  // both spaces begin so
  CHECK(two.b.cleared().size() == 3);
  clear.mutable_space()->set_digest(FakeNode::kSpaceB);
  CHECK(two.controller.Clear(clear, Later())->jobs_size() == 1);
  // Whose first 16 digits a status shows only.
  clear.mutable_space()->set_digest("aabb222222222222f");
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kNotFound, "b: no space begins with");
  clear.mutable_space()->set_digest("b");
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kNotFound, "b: space: no space fits");
  clear.set_everything(true);
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kInvalidArgument, "everything: ");
  clear.clear_space();
  clear.clear_node();
  CHECK(two.controller.Clear(clear, Later())->jobs_size() == 2);
  CHECK(two.a.cleared().back() == "");
  CHECK(two.a.jobs().back().request == "r");
  clear.set_tier("dram");
  CHECK(two.controller.Clear(clear, Later())->jobs(0).tier() == "dram");
  clear.set_tier("tape");
  IsError(two.controller.Clear(clear, Later()).status(), absl::StatusCode::kInvalidArgument, "tier: ");
}

TEST_CASE("Controller lists pins of a node after the other, page by page, beyond one that fails") {
  OneFar nodes;
  nodes.a.Crowd(300);
  v1::ListPinsRequest list;
  auto page = nodes.controller.ListPins(list, Later());
  REQUIRE(page.ok());
  CHECK(page->pins_size() == 256);
  CHECK(page->pins(0).id() == "a/3");
  list.set_after(page->next());
  page = nodes.controller.ListPins(list, Later());
  CHECK(page->pins_size() == 44);
  CHECK(page->next() == "far/0");
  list.set_after(page->next());
  page = nodes.controller.ListPins(list, Soon());
  REQUIRE(page.ok());
  CHECK(Codes(*page) == std::vector<int>{4});
  CHECK(page->next() == "");
  list.add_nodes("a");
  IsError(nodes.controller.ListPins(list, Later()).status(), absl::StatusCode::kInvalidArgument, "after: far");
  v1::UnpinRequest unpin;
  unpin.set_pin("a/3");
  CHECK(nodes.controller.Unpin(unpin, Later())->owner() == "llama-0");
  unpin.set_pin("a/4");
  IsError(nodes.controller.Unpin(unpin, Later()).status(), absl::StatusCode::kNotFound, "a: no pin 4");
  v1::PinRequest pin = On<v1::PinRequest>();
  pin.set_seconds(-1);
  IsError(nodes.controller.Pin(pin, Later()).status(), absl::StatusCode::kInvalidArgument, "seconds: ");
}

TEST_CASE("Controller watches a job until it ends, to a bounded number of watchers") {
  Two two;
  two.b.ClearsGoOn();
  v1::ClearRequest clear;
  clear.set_everything(true);
  clear.set_node("b");
  v1::WatchJobRequest request;
  request.set_job(two.controller.Clear(clear, Later())->jobs(0).id());
  CHECK(request.job() == "b/1");
  const auto stays = [] { return false; };
  std::vector<std::string> states;
  v1::CancelJobRequest cancel;
  cancel.set_job("b/1");
  const absl::Status ended = two.controller.WatchJob(
      request, Later(),
      [&](const v1::Job& job) {
        states.push_back(job.state());
        if (states.size() == 1) CHECK(two.controller.CancelJob(cancel, Later())->state() == "cancelled");
        return true;
      },
      stays);
  CHECK(ended.ok());
  CHECK(states == std::vector<std::string>{"running", "cancelled"});

  request.set_job(two.controller.Clear(clear, Later())->jobs(0).id());
  const auto takes = [](const v1::Job&) { return true; };
  CHECK(two.controller.WatchJob(request, Soon(), takes, stays).code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(two.controller.WatchJob(request, Later(), takes, [] { return true; }).code() == absl::StatusCode::kCancelled);
  CHECK(two.controller
            .WatchJob(
                request, Later(), [](const v1::Job&) { return false; }, stays)
            .code() == absl::StatusCode::kCancelled);
  v1::WatchJobRequest unknown;
  unknown.set_job("b/99");
  IsError(two.controller.WatchJob(unknown, Later(), takes, stays), absl::StatusCode::kNotFound, "job: b lists no job 99");

  std::atomic<int> watching{0};
  std::atomic<bool> leave{false};
  std::vector<std::thread> watchers;
  for (int i = 0; i < Controller::kWatchersMax; ++i) {
    watchers.emplace_back([&] {
      (void)two.controller.WatchJob(
          request, Later(),
          [&](const v1::Job&) {
            ++watching;
            return true;
          },
          [&] { return leave.load(); });
    });
  }
  while (watching < Controller::kWatchersMax) std::this_thread::yield();
  CHECK(two.controller.WatchJob(request, Later(), takes, stays).code() == absl::StatusCode::kResourceExhausted);
  leave = true;
  for (std::thread& watcher : watchers) watcher.join();
  CHECK(two.controller.WatchJob(request, Soon(), takes, stays).code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("Controller has nodes encode what a remote tier has, and checks what they are asked") {
  Two two;
  v1::CompressRequest compress = On<v1::CompressRequest>();
  IsError(two.controller.Compress(compress, Later()).status(), absl::StatusCode::kInvalidArgument, "tier: ");
  compress.set_tier("ssd");
  IsError(two.controller.Compress(compress, Later()).status(), absl::StatusCode::kInvalidArgument, "method: empty");
  compress.set_method("int8");
  compress.set_tier("remote:s3");
  const auto jobs = two.controller.Compress(compress, Later());
  REQUIRE(jobs.ok());
  REQUIRE(jobs->jobs_size() > 0);
  CHECK(jobs->jobs(0).kind() == "compress");
  REQUIRE(two.a.recodes().size() == 1);
  CHECK(two.a.recodes()[0].method == "int8");
  CHECK(two.a.recodes()[0].tier == "remote:s3");
  compress.set_node("z");
  IsError(two.controller.Compress(compress, Later()).status(), absl::StatusCode::kNotFound, "node: no node is called");
  v1::DecompressRequest decompress = On<v1::DecompressRequest>();
  decompress.set_tier("remote:s3");
  CHECK(two.controller.Decompress(decompress, Later())->jobs(0).kind() == "decompress");
  CHECK(two.a.recodes().back().method.empty());
  CHECK(two.a.recodes().back().tier == "remote:s3");
}

}  // namespace
}  // namespace kvist::controller
