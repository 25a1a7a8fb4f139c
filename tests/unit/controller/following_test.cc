#include "daemon/controller/following.h"

#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/controller/controller.h"
#include "daemon/controller/local_node.h"
#include "storage/base/clock.h"
#include "tests/unit/controller/held_node.h"
#include "tests/unit/controller/telling_node.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::controller {
namespace {

constexpr uint64_t kEpoch = 9;
constexpr uint32_t kChunkTokens = 64;

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = MonotonicNow() + absl::Seconds(20);
  while (!holds()) {
    if (MonotonicNow() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// What a test tells, from where it was asked for; as a stream.
class Line {
 public:
  void Tell(FeedMessage message) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
    changed_.SignalAll();
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    changed_.SignalAll();
  }
  absl::StatusOr<FeedMessage> Read() {
    absl::MutexLock lock(&mutex_);
    while (messages_.empty() && !ended_) changed_.Wait(&mutex_);
    if (messages_.empty()) return absl::UnavailableError("the line is cut");
    FeedMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<FeedMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class LineStream final : public ChunkStream {
 public:
  explicit LineStream(std::shared_ptr<Line> line) : line_(std::move(line)) {}
  absl::StatusOr<FeedMessage> Read() override { return line_->Read(); }
  void Cancel() override { line_->End(); }

 private:
  const std::shared_ptr<Line> line_;
};

// A node elsewhere that tells what a test says, and doesn't answer.
class ToldNode final : public HeldNode {
 public:
  struct Connection {
    std::optional<NodeFeed::Position> from;
    std::shared_ptr<Line> line;
  };
  std::unique_ptr<ChunkStream> Follow(std::optional<NodeFeed::Position> from) override {
    const auto line = std::make_shared<Line>();
    absl::MutexLock lock(&mutex_);
    connections_.push_back({from, line});
    return std::make_unique<LineStream>(line);
  }
  bool can_be_followed() const override { return true; }

  // The n-th time that it is followed.
  Connection Connected(size_t n) {
    REQUIRE(Eventually([&] {
      absl::MutexLock lock(&mutex_);
      return connections_.size() > n;
    }));
    absl::MutexLock lock(&mutex_);
    return connections_[n];
  }

 private:
  absl::Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
};

rpc::Prompt PromptOf(uint64_t keys) {
  rpc::Prompt prompt;
  for (uint64_t n = 0; n < keys; ++n) prompt.keys.push_back(KeyOf(n));
  return prompt;
}

std::vector<ChunkState> Chunks(uint64_t from, uint64_t to, TierSet tiers, uint16_t group = 0) {
  std::vector<ChunkState> chunks;
  for (uint64_t n = from; n < to; ++n) chunks.push_back({SpaceId{0}, GroupId{group}, KeyOf(n), tiers});
  return chunks;
}

SpaceIntroduced TheSpace(std::vector<ReuseRule> groups = {ReuseRule{}}) {
  SpaceIntroduced space = SpaceOf(kEpoch, SpaceId{0}, 1, std::move(groups));
  space.chunk_tokens = Tokens{kChunkTokens};
  return space;
}

// A snapshot of these chunks, at `sequence`.
void TellAll(Line* line, const std::vector<ChunkState>& chunks, uint64_t sequence = 0,
             const SpaceIntroduced& space = TheSpace()) {
  line->Tell(SnapshotBegin{kEpoch, sequence});
  line->Tell(space);
  line->Tell(SnapshotSlice{kEpoch, 0, chunks});
  line->Tell(SnapshotEnd{kEpoch, 1});
}

// Node "far", followed.
struct One {
  explicit One(Following::Options options = Quick()) : nodes(Made()), following(&nodes, options) {}
  static Following::Options Quick() {
    Following::Options options;
    options.fresh_for = absl::Seconds(60);
    options.pause_min = options.pause_max = absl::Milliseconds(1);
    return options;
  }
  std::optional<Following::Known> Known(uint64_t keys) {
    return following.Lookup(nodes.all(), rpc::SpaceFilter(), PromptOf(keys)).at(0);
  }
  // Of the prompt's chunks, in the one space; -1 while it isn't known.
  int Held(uint64_t keys) {
    const auto known = Known(keys);
    if (!known.has_value()) return -1;
    return known->spaces.empty() ? 0 : static_cast<int>(known->spaces.at(0).chunks);
  }
  bool SoonHeld(uint64_t keys, int chunks) {
    return Eventually([&] { return Held(keys) == chunks; });
  }

  ToldNode* far = nullptr;
  Nodes nodes;
  Following following;

 private:
  Nodes Made() {
    auto told = std::make_unique<ToldNode>();
    far = told.get();
    std::vector<NamedNode> one;
    one.push_back({"far", std::move(told)});
    return *Nodes::Create(std::move(one));
  }
};

TEST_CASE("A node is known when it has told all, not before") {
  One one;
  const auto first = one.far->Connected(0);
  CHECK_FALSE(first.from.has_value());
  CHECK_FALSE(one.following.StateOf(one.nodes.all()[0])->age.has_value());
  first.line->Tell(SnapshotBegin{kEpoch, 0});
  first.line->Tell(TheSpace());
  first.line->Tell(SnapshotSlice{kEpoch, 0, Chunks(0, 4, kDram)});
  REQUIRE(Eventually([&] { return one.following.StateOf(one.nodes.all()[0])->age.has_value(); }));
  CHECK(one.Held(6) == -1);
  CHECK_FALSE(one.following.StateOf(one.nodes.all()[0])->fresh);
  first.line->Tell(SnapshotEnd{kEpoch, 1});
  REQUIRE(one.SoonHeld(6, 4));

  const Following::Known known = *one.Known(6);
  const rpc::Found& found = known.spaces.at(0);
  CHECK(found.digest == "0100000000000000" + std::string(48, '0'));
  CHECK(found.tenant == "tenant");
  CHECK(found.model == "model");
  CHECK(found.chunk_tokens == kChunkTokens);
  CHECK(found.asked == 6);
  CHECK(found.on_disk == 0);
  CHECK(known.age < absl::Seconds(60));
  const Following::State state = *one.following.StateOf(one.nodes.all()[0]);
  CHECK(state.fresh);
  CHECK(state.chunks == 4);
  CHECK(state.why_not == "");

  // Spaces that don't fit, and prompts without a full chunk.
  rpc::SpaceFilter other;
  other.model = "another";
  CHECK(one.following.Lookup(one.nodes.all(), other, PromptOf(6)).at(0)->spaces.empty());
  CHECK(one.Held(0) == 0);
}

TEST_CASE("Changes are known as they are told") {
  One one;
  const auto first = one.far->Connected(0);
  TellAll(first.line.get(), Chunks(0, 4, kDram), 10);
  REQUIRE(one.SoonHeld(6, 4));
  std::vector<ChunkState> changed = Chunks(4, 6, kDram | kSsd);
  changed.push_back(Chunks(3, 4, kSsd).at(0));
  first.line->Tell(ChangeBatch{kEpoch, 10, 13, changed});
  REQUIRE(one.SoonHeld(6, 6));
  CHECK(one.Known(6)->spaces.at(0).on_disk == 1);
  first.line->Tell(ChangeBatch{kEpoch, 13, 14, Chunks(1, 2, {})});
  REQUIRE(one.SoonHeld(6, 1));
}

TEST_CASE("Who loses a node asks it, and goes on where it was when it is back") {
  One one;
  const auto first = one.far->Connected(0);
  TellAll(first.line.get(), Chunks(0, 4, kDram), 10);
  REQUIRE(one.SoonHeld(6, 4));
  first.line->End();
  const auto second = one.far->Connected(1);
  REQUIRE(second.from.has_value());
  CHECK(second.from->epoch == kEpoch);
  CHECK(second.from->sequence == 10);
  CHECK(one.Held(6) == -1);  // nobody has said yet that nothing has changed
  CHECK_FALSE(one.following.StateOf(one.nodes.all()[0])->fresh);
  second.line->Tell(ChangeBatch{kEpoch, 10, 10, {}});
  REQUIRE(one.SoonHeld(6, 4));
}

TEST_CASE("Who is behind for long asks the node until it has told the rest") {
  Following::Options options = One::Quick();
  options.fresh_for = absl::Milliseconds(300);
  One one(options);
  const auto first = one.far->Connected(0);
  TellAll(first.line.get(), Chunks(0, 4, kDram), 10);
  first.line->End();
  const auto second = one.far->Connected(1);
  const auto state = [&] { return *one.following.StateOf(one.nodes.all()[0]); };
  absl::SleepFor(options.fresh_for);  // so long ago it knew all
  second.line->Tell(ChangeBatch{kEpoch, 10, 11, Chunks(4, 5, kDram), /*untold=*/1});
  REQUIRE(Eventually([&] { return state().why_not == "changes that it still has to tell: 1"; }));
  CHECK(state().chunks == 5);
  CHECK_FALSE(state().fresh);
  CHECK(one.Held(6) == -1);
  second.line->Tell(ChangeBatch{kEpoch, 11, 12, Chunks(0, 1, {})});
  REQUIRE(Eventually([&] {
    second.line->Tell(ChangeBatch{kEpoch, 12, 12});
    return one.Held(6) == 0;
  }));
}

TEST_CASE("Who has missed something asks the node until it has told all again") {
  One one;
  const auto first = one.far->Connected(0);
  TellAll(first.line.get(), Chunks(0, 4, kDram), 10);
  REQUIRE(one.SoonHeld(6, 4));
  SECTION("a change") { first.line->Tell(ChangeBatch{kEpoch, 11, 12, Chunks(4, 5, kDram)}); }
  SECTION("a death") { first.line->Tell(ChangeBatch{kEpoch + 1, 0, 0, {}}); }
  SECTION("sense") { first.line->Tell(ChangeBatch{kEpoch, 10, 11, Chunks(4, 5, kDram, /*group=*/7)}); }
  const auto second = one.far->Connected(1);
  CHECK_FALSE(second.from.has_value());
  CHECK(one.Held(6) == -1);
  second.line->Tell(SnapshotBegin{kEpoch + 1, 0});
  second.line->Tell(SnapshotEnd{kEpoch + 1, 0});
  REQUIRE(one.SoonHeld(6, 0));
}

TEST_CASE("A node that tells all again is asked meanwhile") {
  One one;
  const auto first = one.far->Connected(0);
  TellAll(first.line.get(), Chunks(0, 4, kDram));
  REQUIRE(one.SoonHeld(6, 4));
  first.line->Tell(SnapshotBegin{kEpoch, 20});  // as after a clear
  REQUIRE(one.SoonHeld(6, -1));
  first.line->Tell(SnapshotEnd{kEpoch, 0});
  REQUIRE(one.SoonHeld(6, 0));
}

TEST_CASE("A node that is silent is asked, and believed again when it speaks") {
  Following::Options options = One::Quick();
  options.fresh_for = absl::Seconds(1);
  One one(options);
  const auto first = one.far->Connected(0);
  const auto beats_until_known = [&] {
    return Eventually([&] {
      first.line->Tell(ChangeBatch{kEpoch, 0, 0, {}});
      return one.Held(6) == 4;
    });
  };
  TellAll(first.line.get(), Chunks(0, 4, kDram));
  REQUIRE(beats_until_known());
  REQUIRE(Eventually([&] { return one.Held(6) == -1 && one.following.StateOf(one.nodes.all()[0])->why_not != ""; }));
  REQUIRE(beats_until_known());
}

TEST_CASE("With several groups what lies below is never said to be less") {
  One one;
  std::vector<ChunkState> chunks = Chunks(0, 4, kDram, 0);
  for (const ChunkState& chunk : Chunks(2, 4, kSsd, 1)) chunks.push_back(chunk);
  TellAll(one.far->Connected(0).line.get(), chunks, 0, TheSpace({ReuseRule{}, {GroupKind::kWindow, 2}}));
  REQUIRE(one.SoonHeld(6, 4));
  CHECK(one.Known(6)->spaces.at(0).on_disk == 2);
}

// "a" of this process, which can't be followed, and "far", which can.
struct Mixed {
  FakeNode a;
  ToldNode* far = nullptr;
  Controller controller{Made(), One::Quick()};

  v1::LookupReply Lookup(bool ask_nodes = false, absl::Duration time = absl::Milliseconds(200)) const {
    v1::LookupRequest request;
    request.set_ask_nodes(ask_nodes);
    for (uint64_t n = 0; n < 6; ++n) {
      const ChunkKey key = KeyOf(n);
      request.mutable_prompt()->add_keys(key.bytes.data(), key.bytes.size());
    }
    return *controller.Lookup(request, MonotonicNow() + time);
  }
  Nodes Made() {
    std::vector<NamedNode> nodes;
    nodes.push_back({"a", MakeLocalNode(&a)});
    auto told = std::make_unique<ToldNode>();
    far = told.get();
    nodes.push_back({"far", std::move(told)});
    return *Nodes::Create(std::move(nodes));
  }
};

TEST_CASE("A lookup asks only the nodes that it must, and says which it hasn't") {
  Mixed mixed;
  const auto line = mixed.far->Connected(0).line;
  v1::LookupReply reply = mixed.Lookup();
  REQUIRE(reply.nodes_size() == 2);
  CHECK(reply.nodes(0).code() == 0);
  CHECK_FALSE(reply.nodes(0).by_directory());
  CHECK(reply.nodes(1).code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded));  // it never answers
  CHECK_FALSE(reply.nodes(1).by_directory());

  TellAll(line.get(), Chunks(0, 4, kDram));
  REQUIRE(Eventually([&] { return (reply = mixed.Lookup()).nodes(1).code() == 0; }));
  CHECK_FALSE(reply.nodes(0).by_directory());
  CHECK(reply.nodes(1).by_directory());
  REQUIRE(reply.spaces_size() > 0);
  const v1::LookupReply::InSpace& last = reply.spaces(reply.spaces_size() - 1);
  CHECK(last.node() == "far");
  CHECK(last.chunks() == 4);
  CHECK(last.tokens() == 4 * kChunkTokens);
  REQUIRE(last.tiers_size() == 1);
  CHECK(last.tiers(0).tier() == "dram");

  reply = mixed.Lookup(/*ask_nodes=*/true);
  CHECK(reply.nodes(1).code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  CHECK_FALSE(reply.nodes(1).by_directory());

  v1::LookupRequest other;
  other.mutable_prompt()->add_tokens(1);
  other.mutable_space()->set_model("another");
  other.add_nodes("far");
  const absl::StatusOr<v1::LookupReply> none = mixed.controller.Lookup(other, MonotonicNow() + absl::Seconds(60));
  CHECK(none->nodes(0).code() == static_cast<int>(absl::StatusCode::kNotFound));
  CHECK(none->nodes(0).by_directory());
}

TEST_CASE("A node that tells nothing and doesn't answer is left alone by the next lookups, until it tells") {
  Mixed mixed;
  const auto line = mixed.far->Connected(0).line;
  const auto code = [&](absl::Duration time) { return mixed.Lookup(/*ask_nodes=*/false, time).nodes(1).code(); };
  // Those that have no time for its answer say nothing of it.
  for (int i = 0; i < 3; ++i) CHECK(code(absl::Milliseconds(50)) == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  const absl::Time before = MonotonicNow();
  CHECK(code(absl::Seconds(60)) == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  CHECK(MonotonicNow() - before >= SilentNodes::kWait);
  const size_t asked = mixed.far->held();
  const absl::Time until = MonotonicNow() + SilentNodes::kPause / 2;
  for (int i = 0; i < 100 && MonotonicNow() < until; ++i)
    CHECK(code(absl::Seconds(60)) == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(mixed.far->held() == asked);
  CHECK(mixed.Lookup(/*ask_nodes=*/true).nodes(1).code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  CHECK(mixed.far->held() == asked + 1);
  REQUIRE(Eventually([&] { return code(absl::Seconds(60)) != static_cast<int>(absl::StatusCode::kUnavailable); }));
  TellAll(line.get(), Chunks(0, 4, kDram));
  CHECK(Eventually([&] { return code(absl::Seconds(60)) == 0; }));
}

TEST_CASE("A list of nodes says which are followed, and what is known of them") {
  Mixed mixed;
  TellAll(mixed.far->Connected(0).line.get(), Chunks(0, 4, kDram));
  v1::ListNodesReply reply;
  REQUIRE(Eventually([&] {
    reply = *mixed.controller.ListNodes({}, MonotonicNow() + absl::Seconds(60));
    return reply.nodes(1).followed().fresh();
  }));
  CHECK_FALSE(reply.nodes(0).has_followed());
  CHECK(reply.nodes(1).followed().chunks() == 4);
  CHECK(reply.nodes(1).followed().as_of_ms() >= 0);
}

}  // namespace
}  // namespace kvist::controller
