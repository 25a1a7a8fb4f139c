#include "daemon/controller/node_feed.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "daemon/controller/directory.h"
#include "daemon/controller/directory_search.h"
#include "tests/support/campaign.h"
#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

constexpr uint64_t kEpoch = 5;

ChunkState StateOf(uint64_t n, TierSet tiers) { return {SpaceId{0}, GroupId{0}, KeyOf(n), tiers}; }

// A node as far as its feed is concerned: a table of places, which chunks take and leave. Reading goes from place to place.
class PlacesOfChunks {
 public:
  void Set(const ChunkState& state) {
    const auto at = std::ranges::find_if(places_, [&](const ChunkState& one) {
      return !one.tiers.none() && one.space == state.space && one.group == state.group && one.key == state.key;
    });
    if (at != places_.end()) {
      at->tiers = state.tiers;
    } else if (!state.tiers.none()) {
      const auto gap = std::ranges::find_if(places_, [](const ChunkState& one) { return one.tiers.none(); });
      if (gap != places_.end()) {
        *gap = state;
      } else {
        places_.push_back(state);
      }
    }
  }
  uint64_t Read(uint64_t cursor, uint32_t most, std::vector<ChunkState>* chunks) const {
    for (; cursor < places_.size() && most > 0; ++cursor) {
      if (places_[cursor].tiers.none()) continue;
      chunks->push_back(places_[cursor]);
      --most;
    }
    return cursor == places_.size() ? NodeFeed::kReadAll : cursor;
  }
  PlainChunks Plain() const {
    PlainChunks plain;
    for (const ChunkState& state : places_) {
      if (!state.tiers.none()) SetPlain(&plain, state);
    }
    return plain;
  }

 private:
  std::vector<ChunkState> places_;
};

struct FedNode {
  explicit FedNode(NodeFeed::Options options) : feed(kEpoch, options) {
    feed.Introduce(SpaceOf(0, SpaceId{0}, 1, {ReuseRule{}}));
  }
  void Set(const ChunkState& state) {
    places.Set(state);
    feed.Changed(state);
  }
  std::optional<FeedMessage> Next(NodeFeed::WatcherId watcher) {
    return feed.Next(watcher, [this](uint64_t cursor, uint32_t most, std::vector<ChunkState>* chunks) {
      return places.Read(cursor, most, chunks);
    });
  }
  // The next message, which must be of that kind.
  template <class T>
  T NextOf(NodeFeed::WatcherId watcher) {
    const std::optional<FeedMessage> message = Next(watcher);
    REQUIRE(message.has_value());
    REQUIRE(std::holds_alternative<T>(*message));
    return std::get<T>(*message);
  }

  PlacesOfChunks places;
  NodeFeed feed;
};

TEST_CASE("NodeFeed tells a snapshot, then changes") {
  FedNode f({.changes_kept = 10, .batch_changes_max = 4, .slice_chunks_max = 2});
  for (uint64_t n = 0; n < 3; ++n) f.Set(StateOf(n, kDram));
  const auto watcher = *f.feed.Watch(std::nullopt);
  REQUIRE(f.NextOf<SnapshotBegin>(watcher).sequence == 3);
  REQUIRE(f.NextOf<SpaceIntroduced>(watcher).epoch == kEpoch);
  REQUIRE(f.NextOf<SnapshotSlice>(watcher).chunks == std::vector{StateOf(0, kDram), StateOf(1, kDram)});
  REQUIRE(f.NextOf<SnapshotSlice>(watcher).index == 1);
  const auto end = f.NextOf<SnapshotEnd>(watcher);
  REQUIRE(end.slices == 2);
  REQUIRE(end.untold == 0);
  REQUIRE_FALSE(f.Next(watcher).has_value());
  for (uint64_t n = 3; n < 9; ++n) f.Set(StateOf(n, kSsd));
  const auto batch = f.NextOf<ChangeBatch>(watcher);
  REQUIRE(batch.after == 3);
  REQUIRE(batch.up_to == 7);
  REQUIRE(batch.untold == 2);
  REQUIRE(batch.chunks.size() == 4);
  f.feed.Introduce(SpaceOf(0, SpaceId{1}, 2, {ReuseRule{}}));
  REQUIRE(f.NextOf<SpaceIntroduced>(watcher).id == SpaceId{1});  // before anything that may name it
  const auto last = f.NextOf<ChangeBatch>(watcher);
  REQUIRE(last.up_to == 9);
  REQUIRE(last.untold == 0);
  REQUIRE_FALSE(f.Next(watcher).has_value());
}

TEST_CASE("NodeFeed tells of a chunk once a batch, as it was last") {
  FedNode f({.changes_kept = 10});
  const auto watcher = *f.feed.Watch(NodeFeed::Position{kEpoch, 0});
  f.NextOf<SpaceIntroduced>(watcher);
  for (const TierSet tiers : {kDram, kDram | kSsd, TierSet{}}) f.Set(StateOf(1, tiers));
  f.Set(StateOf(2, kDram));
  f.Set(StateOf(1, kSsd));
  const auto batch = f.NextOf<ChangeBatch>(watcher);
  REQUIRE(batch.chunks == std::vector{StateOf(2, kDram), StateOf(1, kSsd)});
  REQUIRE(batch.after == 0);
  REQUIRE(batch.up_to == 5);
}

TEST_CASE("NodeFeed lets a watcher go on where it was as long as the changes since then are kept") {
  FedNode f({.changes_kept = 4});
  for (uint64_t n = 0; n < 6; ++n) f.Set(StateOf(n, kDram));
  const auto following = *f.feed.Watch(NodeFeed::Position{kEpoch, 2});
  f.NextOf<SpaceIntroduced>(following);
  REQUIRE(f.NextOf<ChangeBatch>(following).chunks.size() == 4);
  for (const auto& [epoch, sequence] : {std::pair{kEpoch, uint64_t{1}}, {kEpoch, uint64_t{7}}, {kEpoch + 1, uint64_t{6}}}) {
    const auto watcher = *f.feed.Watch(NodeFeed::Position{epoch, sequence});
    f.NextOf<SnapshotBegin>(watcher);
    f.feed.Unwatch(watcher);
  }
}

TEST_CASE("NodeFeed begins a snapshot again for a watcher that has fallen behind") {
  FedNode f({.changes_kept = 4, .slice_chunks_max = 1});
  for (uint64_t n = 0; n < 3; ++n) f.Set(StateOf(n, kDram));
  const auto watcher = *f.feed.Watch(std::nullopt);
  f.NextOf<SnapshotBegin>(watcher);
  f.NextOf<SpaceIntroduced>(watcher);
  f.NextOf<SnapshotSlice>(watcher);
  for (uint64_t n = 0; n < 5; ++n) f.Set(StateOf(n, kSsd));
  REQUIRE(f.NextOf<SnapshotBegin>(watcher).sequence == 8);
  f.NextOf<SpaceIntroduced>(watcher);
  REQUIRE(f.NextOf<SnapshotSlice>(watcher).index == 0);
}

TEST_CASE("NodeFeed begins a snapshot for everybody when all has changed") {
  FedNode f({.changes_kept = 4, .slice_chunks_max = 1});
  for (uint64_t n = 0; n < 3; ++n) f.Set(StateOf(n, kDram));
  const auto following = *f.feed.Watch(NodeFeed::Position{kEpoch, 3});
  f.NextOf<SpaceIntroduced>(following);
  REQUIRE_FALSE(f.Next(following).has_value());
  const auto reading = *f.feed.Watch(std::nullopt);
  f.NextOf<SnapshotBegin>(reading);
  f.NextOf<SpaceIntroduced>(reading);
  f.NextOf<SnapshotSlice>(reading);
  f.feed.ChangedAll();
  const uint64_t sequence = f.feed.position().sequence;
  for (const auto watcher : {following, reading, *f.feed.Watch(NodeFeed::Position{kEpoch, 3})}) {
    REQUIRE(f.NextOf<SnapshotBegin>(watcher).sequence == sequence);
    f.NextOf<SpaceIntroduced>(watcher);
    REQUIRE(f.NextOf<SnapshotSlice>(watcher).index == 0);
  }
  // Who knows of it goes on as ever.
  f.Set(StateOf(9, kDram));
  const auto after = *f.feed.Watch(NodeFeed::Position{kEpoch, sequence});
  f.NextOf<SpaceIntroduced>(after);
  REQUIRE(f.NextOf<ChangeBatch>(after).chunks == std::vector{StateOf(9, kDram)});
}

TEST_CASE("NodeFeed ends a snapshot when all changes before its last slice are told") {
  FedNode f({.changes_kept = 10, .batch_changes_max = 1});
  const auto watcher = *f.feed.Watch(std::nullopt);
  f.NextOf<SnapshotBegin>(watcher);
  f.NextOf<SpaceIntroduced>(watcher);
  f.Set(StateOf(1, kDram));
  f.Set(StateOf(1, {}));  // the slice doesn't have it
  REQUIRE(f.NextOf<SnapshotSlice>(watcher).chunks.empty());
  REQUIRE(f.NextOf<ChangeBatch>(watcher).chunks == std::vector{StateOf(1, kDram)});  // for a moment it is there again
  REQUIRE(f.NextOf<ChangeBatch>(watcher).chunks == std::vector{StateOf(1, {})});
  f.NextOf<SnapshotEnd>(watcher);
}

TEST_CASE("NodeFeed has so many watchers at most") {
  FedNode f({.watchers_max = 2});
  const auto first = *f.feed.Watch(std::nullopt);
  REQUIRE(f.feed.Watch(std::nullopt).ok());
  REQUIRE(f.feed.Watch(std::nullopt).status().code() == absl::StatusCode::kResourceExhausted);
  f.feed.Unwatch(first);
  REQUIRE(f.feed.Watch(std::nullopt).ok());
}

// A directory that watches the node over a line which loses, repeats and breaks.
struct Watching {
  explicit Watching(NodeFeed* its_feed) : feed(*its_feed), node(*directory.Meet("node")) { Connect(); }
  void Connect() {
    if (watcher.has_value()) feed.Unwatch(*watcher);
    line.clear();
    std::optional<NodeFeed::Position> from;
    if (const auto position = directory.PositionOf(node)) from = {position->epoch, position->sequence};
    watcher = *feed.Watch(from);
  }
  // What is on its way comes; whether all of it was taken.
  bool Deliver(size_t count) {
    for (; count > 0 && !line.empty(); --count) {
      const absl::Status status = directory.Hear(node, line.front());
      line.pop_front();
      if (!status.ok()) {
        REQUIRE(status.code() == absl::StatusCode::kAborted);
        Connect();
        return false;
      }
    }
    return true;
  }
  // As the directory tells of it, chunk by chunk.
  PlainChunks Told(uint32_t spaces, uint64_t keys) {
    PlainChunks told;
    DirectorySearch search(&directory);
    for (uint32_t space = 0; space < spaces; ++space) {
      for (uint64_t n = 0; n < keys; ++n) {
        const ChunkKey key = KeyOf(n);
        const auto found = search.Find(DigestOf(space), {&key, 1});
        if (!found.ok() || found->empty()) continue;
        REQUIRE_FALSE((*found)[0].stale);
        const auto tiers = std::ranges::find((*found)[0].in_tiers, 1u) - (*found)[0].in_tiers.begin();
        told[{space, 0, key}] = static_cast<uint8_t>(tiers);
      }
    }
    return told;
  }

  NodeFeed& feed;
  Directory directory;
  NodeId node;
  std::optional<NodeFeed::WatcherId> watcher;
  std::deque<FeedMessage> line;
};

TEST_CASE("A directory equals its node after any interleaving of slices, changes, losses and resyncs") {
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto one_in = [&random](uint64_t n) { return random() % n == 0; };
  constexpr uint64_t kKeys = 25;
  const int rounds = test::Campaign("KVIST_DIRECTORY_ROUNDS", 60, 2000);
  uint64_t ends = 0, begins = 0;
  for (int round = 0; round < rounds; ++round) {
    const NodeFeed::Options options{.changes_kept = 1 + static_cast<uint32_t>(random() % 40),
                                    .watchers_max = 3,
                                    .batch_changes_max = 1 + static_cast<uint32_t>(random() % 8),
                                    .slice_chunks_max = 1 + static_cast<uint32_t>(random() % 5)};
    const uint64_t trouble = one_in(3) ? 1'000'000 : 5 + random() % 100;  // one message in so many
    const uint64_t pace = 1 + random() % 6;                               // messages a change
    NodeFeed feed(kEpoch + static_cast<uint64_t>(round), options);
    PlacesOfChunks places;
    uint32_t spaces = 0;
    std::vector<std::unique_ptr<Watching>> watching;
    for (int i = 0; i < 3; ++i) watching.push_back(std::make_unique<Watching>(&feed));
    const auto next = [&](Watching& one) {
      std::optional<FeedMessage> message =
          feed.Next(*one.watcher, [&](uint64_t cursor, uint32_t most, std::vector<ChunkState>* chunks) {
            return places.Read(cursor, most, chunks);
          });
      if (!message.has_value()) return false;
      begins += std::holds_alternative<SnapshotBegin>(*message);
      ends += std::holds_alternative<SnapshotEnd>(*message);
      if (one_in(trouble)) {
        if (one_in(2)) one.line.insert(one.line.end(), 2, *message);  // comes twice, or never
        return true;
      }
      one.line.push_back(*std::move(message));
      return true;
    };
    for (int step = 0; step < 400; ++step) {
      if (spaces == 0 || (spaces < 3 && one_in(100))) {
        feed.Introduce(SpaceOf(0, SpaceId{spaces}, spaces, {ReuseRule{}}));
        ++spaces;
      }
      if (one_in(pace)) {
        const ChunkState state{SpaceId{static_cast<uint32_t>(random() % spaces)}, GroupId{0}, KeyOf(random() % kKeys),
                               TierSet{static_cast<uint8_t>(one_in(2) ? 0 : 1 + random() % TierSet::kAll)}};
        places.Set(state);
        feed.Changed(state);
      }
      if (one_in(200)) {  // a clear, which isn't told chunk by chunk
        places = {};
        feed.ChangedAll();
      }
      Watching& one = *watching[random() % watching.size()];
      if (!one_in(4)) next(one);
      if (one_in(2)) one.Deliver(1 + random() % 4);
      if (one_in(3 * trouble)) {  // the line breaks; what was on it is gone
        one.directory.Lose(one.node, absl::InfiniteFuture());
        one.Connect();
      }
      for (int i = one_in(5) ? 200 : 0; i > 0; --i) one.directory.Tick(absl::InfinitePast());
    }
    // Quiet, and no more trouble: all of it comes.
    for (const auto& one : watching) {
      one->directory.Lose(one->node, absl::InfiniteFuture());
      one->Connect();
      for (int turns = 0; true; ++turns) {
        REQUIRE(turns < 10'000);
        std::optional<FeedMessage> message =
            feed.Next(*one->watcher, [&](uint64_t cursor, uint32_t most, std::vector<ChunkState>* chunks) {
              return places.Read(cursor, most, chunks);
            });
        if (!message.has_value()) break;
        REQUIRE(one->directory.Hear(one->node, *message).ok());
      }
      REQUIRE(one->directory
                  .Hear(one->node, ChangeBatch{kEpoch + static_cast<uint64_t>(round), feed.position().sequence,
                                               feed.position().sequence})
                  .ok());  // it lives
      REQUIRE(one->Told(spaces, kKeys) == places.Plain());
      REQUIRE(one->directory.Nodes()[0].chunks == places.Plain().size());
    }
  }
  REQUIRE(begins > static_cast<uint64_t>(rounds));  // some again
  REQUIRE(ends > static_cast<uint64_t>(rounds));
}

}  // namespace
}  // namespace kvist::controller
