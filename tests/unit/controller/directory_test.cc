#include "daemon/controller/directory.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "daemon/controller/directory_search.h"
#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

constexpr ReuseRule kFull{};
constexpr ReuseRule kState{GroupKind::kState};
constexpr ReuseRule kWindowOfTwo{GroupKind::kWindow, 2};
constexpr SpaceId kSpace{3};
constexpr uint64_t kDigest = 77;

std::vector<ChunkKey> Keys(uint64_t first, uint64_t count) {
  std::vector<ChunkKey> keys;
  for (uint64_t n = first; n < first + count; ++n) keys.push_back(KeyOf(n));
  return keys;
}

std::vector<ChunkState> States(uint64_t first, uint64_t count, TierSet tiers, GroupId group = GroupId{0}) {
  std::vector<ChunkState> states;
  for (const ChunkKey& key : Keys(first, count)) states.push_back({kSpace, group, key, tiers});
  return states;
}

struct Fixture {
  Directory directory;
  DirectorySearch search{&directory};

  NodeId Met(const std::string& name) { return *directory.Meet(name); }
  void Snapshot(NodeId node, uint64_t epoch, uint64_t sequence, std::vector<ChunkState> chunks,
                std::vector<ReuseRule> groups = {kFull}) {
    REQUIRE(directory.Hear(node, SnapshotBegin{epoch, sequence}).ok());
    REQUIRE(directory.Hear(node, SpaceOf(epoch, kSpace, kDigest, std::move(groups))).ok());
    REQUIRE(directory.Hear(node, SnapshotSlice{epoch, 0, std::move(chunks)}).ok());
    REQUIRE(directory.Hear(node, SnapshotEnd{epoch, 1}).ok());
  }
  std::vector<Holding> Find(const std::vector<ChunkKey>& keys) {
    const auto found = search.Find(DigestOf(kDigest), keys);
    REQUIRE(found.ok());
    return {found->begin(), found->end()};
  }
  uint32_t ChunksOf(NodeId node, const std::vector<ChunkKey>& keys) {
    for (const Holding& holding : Find(keys)) {
      if (holding.node == node) return holding.chunks;
    }
    return 0;
  }
  // How often Tick has to be called until nothing is left to sweep.
  int SweepAll(absl::Time now) {
    int ticks = 1;
    while (directory.Tick(now)) ++ticks;
    return ticks;
  }
};

TEST_CASE("Directory tells who holds how much of a prompt, in which tiers") {
  Fixture f;
  const NodeId a = f.Met("a"), b = f.Met("b");
  f.Snapshot(a, 1, 0, States(0, 5, kDram));
  auto chunks = States(0, 10, kDram);
  chunks[7].tiers = kDram | kSsd;
  chunks[8].tiers = kSsd;
  f.Snapshot(b, 2, 0, chunks);
  const auto found = f.Find(Keys(0, 12));
  REQUIRE(found.size() == 2);
  REQUIRE(found[0].node == b);  // the one with most first
  REQUIRE(found[0].chunks == 10);
  REQUIRE(found[0].needed() == 10);
  REQUIRE(found[0].In(RestTier::kDram) == 9);
  REQUIRE(found[0].In(RestTier::kSsd) == 2);
  REQUIRE(found[0].QuickestIn(RestTier::kSsd) == 1);
  REQUIRE(found[0].In(RestTier::kRemote) == 0);
  REQUIRE(found[1].node == a);
  REQUIRE(found[1].chunks == 5);
  REQUIRE_FALSE(found[1].stale);
  REQUIRE(f.Find(Keys(1, 5)).size() == 2);  // a part of the chain is a chain to it
  REQUIRE(f.Find(Keys(20, 5)).empty());
  REQUIRE(f.Find({}).empty());
}

TEST_CASE("Directory tells how far a node can go on in all groups") {
  Fixture f;
  const NodeId node = f.Met("a");
  auto chunks = States(0, 6, kDram, GroupId{0});
  for (const uint64_t n : {2, 3, 5, 6}) chunks.push_back({kSpace, GroupId{1}, KeyOf(n), kSsd});
  for (const uint64_t n : {1, 3, 6}) chunks.push_back({kSpace, GroupId{2}, KeyOf(n), kDram});
  f.Snapshot(node, 1, 0, chunks, {kFull, kWindowOfTwo, kState});  // as drawn in directory_search.h
  const auto found = f.Find(Keys(0, 8));
  REQUIRE(found.size() == 1);
  REQUIRE(found[0].chunks == 4);
  REQUIRE(found[0].In(RestTier::kDram) == 5);  // four of the first group, one of the last
  REQUIRE(found[0].In(RestTier::kSsd) == 2);
}

TEST_CASE("Directory follows changes, and asks for a snapshot where one is missing") {
  Fixture f;
  const NodeId node = f.Met("a");
  REQUIRE(f.directory.Hear(node, ChangeBatch{1, 0, 0}).code() == absl::StatusCode::kAborted);  // never told anything
  f.Snapshot(node, 1, 10, States(0, 5, kDram));
  REQUIRE(f.directory.Hear(node, ChangeBatch{1, 10, 12, States(4, 2, kSsd)}).ok());
  REQUIRE(f.Find(Keys(0, 9))[0].chunks == 6);
  REQUIRE(f.Find(Keys(0, 9))[0].In(RestTier::kSsd) == 2);
  REQUIRE(f.directory.Hear(node, ChangeBatch{1, 10, 12, States(0, 1, {})}).ok());  // told already: nothing new
  REQUIRE(f.ChunksOf(node, Keys(0, 9)) == 6);
  REQUIRE(f.directory.Hear(node, ChangeBatch{1, 11, 13, States(5, 1, {})}).ok());  // partly
  REQUIRE(f.ChunksOf(node, Keys(0, 9)) == 5);
  REQUIRE(f.directory.PositionOf(node)->sequence == 13);

  const auto wrong = GENERATE(
      FeedMessage(ChangeBatch{1, 14, 15}), FeedMessage(ChangeBatch{2, 13, 14}), FeedMessage(SnapshotSlice{1, 0}),
      FeedMessage(SnapshotEnd{1, 0}), FeedMessage(ChangeBatch{1, 13, 14, {{SpaceId{9}, GroupId{0}, KeyOf(1), kDram}}}),
      FeedMessage(ChangeBatch{1, 13, 14, States(1, 1, kDram, GroupId{1})}),
      FeedMessage(ChangeBatch{1, 13, 14, States(1, 1, {8})}), FeedMessage(SpaceOf(1, SpaceId{4}, kDigest, {kState})),
      FeedMessage(SpaceOf(1, SpaceId{4}, 78, {})));
  REQUIRE_FALSE(f.directory.Hear(node, wrong).ok());
  REQUIRE(f.Find(Keys(0, 9))[0].stale);
  REQUIRE(f.Find(Keys(0, 9))[0].chunks == 5);
  REQUIRE(f.directory.Nodes()[0].needs_snapshot);
  REQUIRE_FALSE(f.directory.PositionOf(node).has_value());
  REQUIRE(f.directory.Hear(node, ChangeBatch{1, 13, 14}).code() ==
          absl::StatusCode::kAborted);  // even what would have followed
  f.Snapshot(node, 2, 3, States(0, 2, kDram));
  REQUIRE_FALSE(f.Find(Keys(0, 9))[0].stale);
  REQUIRE(f.ChunksOf(node, Keys(0, 9)) == 2);
}

TEST_CASE("Directory shows a snapshot when it is whole, and what was there before until then") {
  Fixture f;
  const NodeId node = f.Met("a");
  f.Snapshot(node, 1, 0, States(0, 3, kDram));
  REQUIRE(f.directory.Hear(node, SnapshotBegin{2, 5}).ok());
  REQUIRE(f.directory.Hear(node, SpaceOf(2, kSpace, kDigest, {kFull})).ok());
  REQUIRE(f.directory.Hear(node, SnapshotSlice{2, 0, States(0, 8, kSsd)}).ok());
  REQUIRE(f.directory.Hear(node, ChangeBatch{2, 5, 6, States(7, 1, {})}).ok());  // belongs to the new one
  REQUIRE(f.Find(Keys(0, 9))[0].chunks == 3);
  REQUIRE(f.Find(Keys(0, 9))[0].stale);
  REQUIRE(f.Find(Keys(0, 9))[0].In(RestTier::kDram) == 3);

  SECTION("it ends") {
    REQUIRE(f.directory.Hear(node, SnapshotEnd{2, 1}).ok());
    REQUIRE(f.Find(Keys(0, 9)).size() == 1);
    REQUIRE(f.Find(Keys(0, 9))[0].chunks == 7);
    REQUIRE_FALSE(f.Find(Keys(0, 9))[0].stale);
    REQUIRE(f.directory.Nodes()[0].chunks == 7);
  }
  SECTION("a slice is lost") {
    REQUIRE(f.directory.Hear(node, SnapshotSlice{2, 2}).code() == absl::StatusCode::kAborted);
    REQUIRE(f.Find(Keys(0, 9))[0].chunks == 3);
  }
  SECTION("it ends too early") {
    REQUIRE(f.directory.Hear(node, SnapshotEnd{2, 2}).code() == absl::StatusCode::kAborted);
    REQUIRE(f.Find(Keys(0, 9))[0].chunks == 3);
  }
  SECTION("the node is lost meanwhile, and half a snapshot with it") {
    f.directory.Lose(node, absl::InfiniteFuture());
    REQUIRE(f.directory.Hear(node, SnapshotEnd{2, 1}).code() == absl::StatusCode::kAborted);
    REQUIRE(f.Find(Keys(0, 9))[0].chunks == 3);
  }
  f.SweepAll(absl::UnixEpoch());
  REQUIRE(f.Find(Keys(0, 9)).size() == 1);  // what is shown stays
}

TEST_CASE("Directory tells of a lost node as stale until its lease ends, and forgets it in slices") {
  Fixture f;
  const NodeId lost = f.Met("lost"), other = f.Met("other");
  f.Snapshot(lost, 1, 0, States(0, 6, kDram));
  f.Snapshot(other, 2, 0, States(0, 4, kDram));
  const absl::Time end = absl::FromUnixSeconds(100);
  f.directory.Lose(lost, end);
  REQUIRE_FALSE(f.directory.Tick(end - absl::Seconds(1)));
  REQUIRE(f.Find(Keys(0, 9))[0].node == lost);
  REQUIRE(f.Find(Keys(0, 9))[0].stale);

  SECTION("it comes back in time") {
    REQUIRE(f.directory.Hear(lost, ChangeBatch{1, 0, 0}).ok());
    REQUIRE_FALSE(f.Find(Keys(0, 9))[0].stale);
    REQUIRE_FALSE(f.directory.Tick(end + absl::Seconds(1)));
    REQUIRE(f.ChunksOf(lost, Keys(0, 9)) == 6);
  }
  SECTION("it doesn't") {
    const int ticks = f.SweepAll(end);
    REQUIRE(ticks == static_cast<int>(HolderIndex::kShards));
    REQUIRE(f.Find(Keys(0, 9)).size() == 1);
    REQUIRE(f.Find(Keys(0, 9))[0].node == other);
    REQUIRE(f.directory.Hear(lost, ChangeBatch{1, 0, 0}).code() == absl::StatusCode::kNotFound);
    REQUIRE(f.Met("lost") != lost);
    REQUIRE(f.Met("other") == other);
  }
}

TEST_CASE("Directory gives the memory of what it has forgotten back") {
  Fixture f;
  const NodeId node = f.Met("a");
  const uint64_t empty = f.directory.memory_bytes();
  f.Snapshot(node, 1, 0, States(0, 400'000, kDram));
  const uint64_t full = f.directory.memory_bytes();
  REQUIRE(full - empty < 400'000 * 48);
  f.Snapshot(node, 2, 0, States(0, 1, kDram));
  f.SweepAll(absl::UnixEpoch());
  REQUIRE(f.directory.memory_bytes() - empty < full / 3);
  REQUIRE(f.ChunksOf(node, Keys(0, 9)) == 1);
}

TEST_CASE("Directory holds more tellings than there can be at once, for each goes in time") {
  Fixture f;
  const NodeId node = f.Met("a");
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 2 * kTellingsMax; ++i) {
    const absl::Status status = f.directory.Hear(node, SnapshotBegin{1 + i, 0});
    if (status.ok()) continue;
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(i >= kTellingsMax);  // all were in use
    ++refused;
    f.SweepAll(absl::UnixEpoch());
  }
  REQUIRE(refused == 1);
}

TEST_CASE("Directory finds spaces by model and tenant, and keeps them apart") {
  Fixture f;
  const NodeId node = f.Met("a");
  REQUIRE(f.directory.Hear(node, SnapshotBegin{1, 0}).ok());
  const std::vector<std::pair<std::string, std::string>> spaces{{"x", "t"}, {"x", "u"}, {"y", "t"}};
  for (uint32_t i = 0; i < spaces.size(); ++i) {
    REQUIRE(
        f.directory
            .Hear(node, SpaceIntroduced{1, SpaceId{i}, DigestOf(i), spaces[i].second, spaces[i].first, Tokens{256}, {kFull}})
            .ok());
    REQUIRE(f.directory.Hear(node, SnapshotSlice{1, i, {{SpaceId{i}, GroupId{0}, KeyOf(i), kDram}}}).ok());
  }
  REQUIRE(f.directory.Hear(node, SnapshotEnd{1, 3}).ok());
  REQUIRE(f.directory.Spaces({}).size() == 3);
  REQUIRE(f.directory.Spaces({.model = "x"}).size() == 2);
  REQUIRE(f.directory.Spaces({.model = "x", .tenant = "u"}).size() == 1);
  REQUIRE(f.directory.Spaces({.model = "x", .tenant = "u"})[0].digest == DigestOf(1));
  REQUIRE(f.directory.Spaces({.model = {}, .tenant = "v"}).empty());
  for (uint32_t i = 0; i < spaces.size(); ++i) {
    for (uint32_t k = 0; k < spaces.size(); ++k) {
      REQUIRE(f.search.Find(DigestOf(i), Keys(k, 1))->size() == (i == k ? 1 : 0));
    }
  }
  REQUIRE(f.search.Find(DigestOf(9), Keys(0, 1)).status().code() == absl::StatusCode::kNotFound);
  REQUIRE(f.search.Find(DigestOf(0), Keys(0, DirectorySearch::kKeysMax + 1)).status().code() ==
          absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Fingerprint depends on space, group, key and seed") {
  const Fingerprint fingerprint{{0x9ae16a3b2f90404f, 0xc949d7c7509e6557, 0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53}};
  Fingerprint other = fingerprint;
  other.seed[3] ^= 1;
  ChunkKey key = KeyOf(1);
  const uint64_t base = fingerprint(SpaceId{1}, GroupId{2}, key);
  REQUIRE(base == fingerprint(SpaceId{1}, GroupId{2}, key));
  REQUIRE(base != fingerprint(SpaceId{2}, GroupId{2}, key));
  REQUIRE(base != fingerprint(SpaceId{1}, GroupId{3}, key));
  REQUIRE(base != other(SpaceId{1}, GroupId{2}, key));
  for (uint8_t& byte : key.bytes) {
    byte ^= 1;
    REQUIRE(base != fingerprint(SpaceId{1}, GroupId{2}, key));
    byte ^= 1;
  }
}

}  // namespace
}  // namespace kvist::controller
