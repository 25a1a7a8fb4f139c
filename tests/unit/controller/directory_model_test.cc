// A directory beside a plain one, which keeps whole maps: any messages of some nodes in any order, gaps, epochs, lost nodes, leases that end,
// sweeps that have come anywhere. After every few steps all lookups are compared with what trying every position finds.
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/controller/directory.h"
#include "daemon/controller/directory_search.h"
#include "tests/support/campaign.h"
#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

using Code = absl::StatusCode;

struct PlainSpace {
  uint64_t digest;
  std::vector<ReuseRule> rules;
};

const std::vector<PlainSpace>& PlainSpaces() {
  static const ReuseRule full{}, narrow{GroupKind::kWindow, 1}, window{GroupKind::kWindow, 3}, state{GroupKind::kState};
  static const std::vector<PlainSpace> spaces{
      {10, {full}}, {11, {full, full}}, {12, {window}}, {13, {full, window, state}}, {14, {window, full, narrow, state}}};
  return spaces;
}

constexpr uint64_t kChains = 3;
constexpr uint32_t kLength = 9;

std::vector<ChunkKey> Chain(uint64_t chain) {
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < kLength; ++k) keys.push_back(KeyOf(chain * 100 + k));
  return keys;
}

// What a directory has to know of a node. Chunks by the place of their space in PlainSpaces().
struct PlainNode {
  std::string name;
  NodeId id;
  bool follows = false;
  uint64_t epoch = 0, sequence = 0;
  uint32_t slices = 0;
  std::set<uint32_t> introduced = {};
  std::optional<PlainChunks> shown = {}, filling = {};
  bool stale = false;
  std::optional<absl::Time> lease_end = {};

  // What any message does that isn't taken.
  Code Refuse(Code code) {
    follows = false;
    filling.reset();
    if (shown.has_value()) stale = true;
    return code;
  }
  Code Begin(const SnapshotBegin& begin) {
    if (shown.has_value()) stale = true;
    filling.emplace();
    slices = 0;
    epoch = begin.epoch;
    sequence = begin.sequence;
    follows = true;
    introduced.clear();
    lease_end.reset();
    return Code::kOk;
  }
  bool Set(const std::vector<ChunkState>& chunks) {
    for (const ChunkState& chunk : chunks) {
      if (!introduced.contains(chunk.space.value)) return false;
    }
    for (const ChunkState& chunk : chunks) SetPlain(filling.has_value() ? &*filling : &*shown, chunk);
    return true;
  }
  Code Slice(const SnapshotSlice& slice) {
    if (!follows || slice.epoch != epoch || !filling.has_value() || slice.index != slices) return Refuse(Code::kAborted);
    ++slices;
    if (!Set(slice.chunks)) return Refuse(Code::kAborted);
    lease_end.reset();
    return Code::kOk;
  }
  Code End(const SnapshotEnd& end) {
    if (!follows || end.epoch != epoch || !filling.has_value() || end.slices != slices) return Refuse(Code::kAborted);
    shown = std::move(filling);
    filling.reset();
    stale = false;
    lease_end.reset();
    return Code::kOk;
  }
  Code Apply(const ChangeBatch& batch) {
    if (!follows || batch.epoch != epoch || batch.after > sequence) return Refuse(Code::kAborted);
    if (batch.up_to > sequence) {
      if (!Set(batch.chunks)) return Refuse(Code::kAborted);
      sequence = batch.up_to;
    }
    if (!filling.has_value()) stale = false;
    lease_end.reset();
    return Code::kOk;
  }
  Code Introduce(const SpaceIntroduced& space) {
    if (!follows || space.epoch != epoch) return Refuse(Code::kAborted);
    introduced.insert(space.id.value);
    lease_end.reset();
    return Code::kOk;
  }
  void Lose(absl::Time end) {
    if (filling.has_value()) follows = false;
    filling.reset();
    if (shown.has_value()) stale = true;
    lease_end = end;
  }

  // By trying every position.
  Holding Holds(uint32_t space, const std::vector<ChunkKey>& keys) const {
    const std::vector<ReuseRule>& rules = PlainSpaces()[space].rules;
    for (auto position = static_cast<uint32_t>(keys.size()); position > 0; --position) {
      Holding holding{id, stale, position};
      bool usable = true;
      for (uint16_t g = 0; g < rules.size(); ++g) {
        for (uint32_t k = 0; k < position; ++k) {
          const bool needed = rules[g].kind == GroupKind::kFull ||
                              (rules[g].kind == GroupKind::kWindow && k + rules[g].window_chunks >= position) ||
                              (rules[g].kind == GroupKind::kState && k + 1 == position);
          if (!needed) continue;
          const auto found = shown->find({space, g, keys[k]});
          usable = usable && found != shown->end();
          if (usable) ++holding.in_tiers[found->second];
        }
      }
      if (usable) return holding;
    }
    return {};
  }
};

TEST_CASE("Directory does what a plain one does, whatever it is told") {
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto one_in = [&random](uint32_t n) { return random() % n == 0; };
  const int rounds = test::Campaign("KVIST_DIRECTORY_ROUNDS", 20, 400);
  uint64_t hits = 0;
  for (int round = 0; round < rounds; ++round) {
    Directory directory;
    DirectorySearch search(&directory);
    std::vector<PlainNode> nodes;
    const uint64_t count = one_in(4) ? 9 : 1 + random() % 4;  // more than one cell of holders
    for (uint64_t n = 0; n < count; ++n) nodes.push_back({std::to_string(n), *directory.Meet(std::to_string(n))});
    absl::Time now = absl::UnixEpoch();
    uint64_t epochs = 0;
    const auto some_chunks = [&](uint64_t most) {
      std::vector<ChunkState> chunks;
      for (uint64_t i = random() % (most + 1); i > 0; --i) {
        const auto space = static_cast<uint32_t>(random() % PlainSpaces().size());
        const auto group = static_cast<uint16_t>(random() % PlainSpaces()[space].rules.size());
        const uint64_t chain = random() % kChains;
        const uint64_t first = random() % kLength, last = first + random() % (kLength - first);
        const auto tiers = static_cast<uint8_t>(one_in(4) ? 0 : random() % (TierSet::kAll + 1));
        for (uint64_t k = first; k <= last; ++k)
          chunks.push_back({SpaceId{space}, GroupId{group}, KeyOf(chain * 100 + k), {tiers}});
      }
      return chunks;
    };
    for (int step = 0; step < 700; ++step) {
      PlainNode& node = nodes[random() % nodes.size()];
      const uint64_t epoch = one_in(300) ? node.epoch + 1 : node.epoch;
      FeedMessage message;
      Code expected = Code::kOk;
      switch (random() % 12) {
        case 0: {
          if (node.follows && node.filling.has_value() && !one_in(20)) continue;
          const SnapshotBegin begin{one_in(2) ? node.epoch : ++epochs, random() % 100};
          message = begin;
          expected = node.Begin(begin);
          break;
        }
        case 1:
        case 2:
        case 3: {
          const auto space = static_cast<uint32_t>(random() % PlainSpaces().size());
          const SpaceIntroduced introduced =
              SpaceOf(epoch, SpaceId{space}, PlainSpaces()[space].digest, PlainSpaces()[space].rules);
          message = introduced;
          expected = node.Introduce(introduced);
          break;
        }
        case 4:
        case 5: {
          if (!node.filling.has_value() && !one_in(60)) continue;
          SnapshotSlice slice{epoch, one_in(100) ? node.slices + 1 : node.slices, some_chunks(20)};
          if (!one_in(50))
            std::erase_if(slice.chunks, [&](const auto& c) { return !node.introduced.contains(c.space.value); });
          message = slice;
          expected = node.Slice(slice);
          break;
        }
        case 6: {
          if (!node.filling.has_value() && !one_in(60)) continue;
          const SnapshotEnd end{epoch, one_in(50) ? node.slices + 1 : node.slices};
          message = end;
          expected = node.End(end);
          break;
        }
        case 7: {
          if (!one_in(6)) continue;
          const absl::Time end = now + absl::Seconds(random() % 20);
          directory.Lose(node.id, end);
          node.Lose(end);
          continue;
        }
        case 8: {
          now += absl::Seconds(random() % 4);
          for (uint64_t i = one_in(10) ? 3 * HolderIndex::kShards : random() % 500; i > 0; --i) directory.Tick(now);
          directory.Tick(now);
          for (PlainNode& one : nodes) {
            if (!one.lease_end.has_value() || *one.lease_end > now) continue;
            REQUIRE(directory.Hear(one.id, ChangeBatch{one.epoch, 0, 0}).code() == Code::kNotFound);
            const NodeId id = *directory.Meet(one.name);
            REQUIRE(id != one.id);
            one = {one.name, id};
          }
          continue;
        }
        default: {
          ChangeBatch batch{epoch, node.sequence, node.sequence, some_chunks(5)};
          if (one_in(60)) ++batch.after;
          if (one_in(5)) batch.after -= std::min<uint64_t>(batch.after, random() % 3);
          batch.up_to = batch.after + random() % 4;
          if (!one_in(50))
            std::erase_if(batch.chunks, [&](const auto& c) { return !node.introduced.contains(c.space.value); });
          message = batch;
          expected = node.Apply(batch);
        }
      }
      const absl::Status status = directory.Hear(node.id, message);
      INFO("step " << step << ": " << status.ToString());
      REQUIRE(status.code() == expected);
      REQUIRE(directory.PositionOf(node.id).has_value() == (node.follows && !node.filling.has_value()));
      if (step % 5 != 0) continue;

      for (uint32_t space = 0; space < PlainSpaces().size(); ++space) {
        const uint64_t chain = random() % kChains;
        const std::vector<ChunkKey> keys = Chain(chain);
        std::map<NodeId, Holding> holders;
        for (const PlainNode& one : nodes) {
          if (!one.shown.has_value()) continue;
          if (const Holding holding = one.Holds(space, keys); holding.chunks > 0) holders[one.id] = holding;
        }
        const auto found = search.Find(DigestOf(PlainSpaces()[space].digest), keys);
        if (!found.ok()) {
          REQUIRE(holders.empty());
          continue;
        }
        REQUIRE(found->size() == holders.size());
        for (size_t i = 0; i < found->size(); ++i) {
          const Holding& holding = (*found)[i];
          REQUIRE(holders.contains(holding.node));
          const Holding& plain = holders[holding.node];
          REQUIRE(holding.chunks == plain.chunks);
          REQUIRE(holding.stale == plain.stale);
          REQUIRE(holding.in_tiers == plain.in_tiers);
          if (i > 0) REQUIRE((*found)[i - 1].chunks >= holding.chunks);
          ++hits;
        }
      }
      for (const Directory::NodeView& view : directory.Nodes()) {
        const auto plain = std::ranges::find(nodes, view.node, &PlainNode::id);
        REQUIRE(plain != nodes.end());
        REQUIRE(view.chunks == (plain->shown.has_value() ? plain->shown->size() : 0));
        REQUIRE(view.stale == plain->stale);
        REQUIRE(view.filling == plain->filling.has_value());
        REQUIRE(view.needs_snapshot == !plain->follows);
      }
    }
  }
  REQUIRE(hits > 20 * static_cast<uint64_t>(rounds));  // else it tests nothing
}

}  // namespace
}  // namespace kvist::controller
