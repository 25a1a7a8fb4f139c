// Readers beside writers: what doesn't change is always seen, whatever changes around it. For ThreadSanitizer, too.
#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/controller/directory.h"
#include "daemon/controller/directory_search.h"
#include "daemon/controller/holder_index.h"
#include "tests/support/campaign.h"
#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

TEST_CASE("HolderIndex shows readers every holder that stays, while its neighbours come, go and move") {
  // All in one shard, side by side, so that each change moves cells that somebody is reading.
  constexpr uint64_t kFingerprints = 200;
  constexpr TellingId kStays = 7;
  const int rounds = test::Campaign("KVIST_DIRECTORY_CHANGES", 60'000, 4'000'000);
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  HolderIndex index;
  std::vector<uint64_t> fingerprints;
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < kFingerprints; ++i) fingerprints.push_back(random() >> HolderIndex::kShardBits);
  for (uint64_t i = 0; i < kFingerprints; i += 2) index.Set(fingerprints[i], kStays, {5});
  std::atomic<int> writing = 2;
  std::atomic<uint64_t> missed = 0, wrong = 0, reads = 0;
  const auto write = [&](uint32_t number) {
    std::mt19937_64 its(seed + number);
    for (int i = 0; i < rounds; ++i) {
      const uint64_t fingerprint = fingerprints[its() % kFingerprints];
      // Each writer has tellings of its own, six: more than a cell.
      const auto telling = static_cast<TellingId>(100 * number + its() % 6);
      index.Set(fingerprint, telling, {static_cast<uint8_t>((i / 5000 % 2 == 0) == (its() % 8 < 7) ? 1 + its() % 7 : 0)});
      if (number == 1 && i % 3000 == 0) {
        TellingSet lost;
        lost.set(100 * number + 5);
        index.Sweep(0, lost);
      }
    }
    --writing;
  };
  const auto read = [&](uint32_t number) {
    std::mt19937_64 its(seed + 10 + number);
    Readers::Reader reader(index.readers());
    while (writing > 0) {
      const Reading reading(&reader);
      for (int i = 0; i < 100; ++i) {
        const uint64_t at = its() % kFingerprints;
        bool stays = false;
        index.Visit(fingerprints[at], [&](TellingId telling, TierSet tiers) {
          if (telling == kStays) {
            stays = true;
            if (tiers.bits != 5 || at % 2 != 0) ++wrong;
          } else if (telling / 100 != 1 && telling / 100 != 2) {
            ++wrong;
          }
        });
        if (!stays && at % 2 == 0) ++missed;
        ++reads;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) threads.emplace_back(read, i);
  for (uint32_t i = 1; i <= 2; ++i) threads.emplace_back(write, i);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(reads > 0);
  REQUIRE(missed == 0);
  REQUIRE(wrong == 0);
  const uint64_t full = index.memory_bytes();
  TellingSet lost;
  lost.set();
  index.Sweep(0, lost);
  index.Collect();
  REQUIRE(index.memory_bytes() < full);  // nobody reads any more: what was replaced is gone, too
}

TEST_CASE("Directory shows each node by one telling, whole, while snapshots replace each other") {
  constexpr uint32_t kLengths[] = {5, 9};
  const int rounds = test::Campaign("KVIST_DIRECTORY_SNAPSHOTS", 150, 5000);
  std::vector<ChunkKey> keys;
  for (uint64_t n = 0; n < kLengths[1]; ++n) keys.push_back(KeyOf(n));
  Directory directory;
  const auto snapshot = [&](NodeId node, uint64_t epoch) {
    // Which one it is shows in its tiers, too.
    const uint32_t which = epoch % 2;
    bool taken = directory.Hear(node, SnapshotBegin{epoch, 0}).ok() &&
                 directory.Hear(node, SpaceOf(epoch, SpaceId{0}, 1, {ReuseRule{}})).ok();
    for (uint32_t k = 0; k < kLengths[which]; ++k) {
      taken =
          taken &&
          directory
              .Hear(node, SnapshotSlice{epoch, k, {{SpaceId{0}, GroupId{0}, keys[k], {static_cast<uint8_t>(1 + which)}}}})
              .ok();
    }
    return taken && directory.Hear(node, SnapshotEnd{epoch, kLengths[which]}).ok();
  };
  std::vector<NodeId> nodes;
  for (int n = 0; n < 3; ++n) {
    nodes.push_back(*directory.Meet(std::to_string(n)));
    REQUIRE(snapshot(nodes.back(), 0));
  }
  std::atomic<int> writing = 2;
  std::atomic<uint64_t> refused = 0, wrong = 0, lookups = 0;
  const auto tell = [&](uint32_t node) {
    for (int i = 1; i <= rounds; ++i) refused += snapshot(nodes[node], static_cast<uint64_t>(i)) ? 0 : 1;
    --writing;
  };
  const auto sweep = [&] {
    while (writing > 0) directory.Tick(absl::InfinitePast());
  };
  const auto look = [&] {
    DirectorySearch search(&directory);
    while (writing > 0) {
      const auto found = search.Find(DigestOf(1), keys);
      std::set<NodeId> seen;
      for (const Holding& holding : *found) {
        seen.insert(holding.node);
        const bool one = holding.chunks == kLengths[0] && holding.in_tiers[1] == kLengths[0];
        const bool other = holding.chunks == kLengths[1] && holding.in_tiers[2] == kLengths[1];
        if (holding.node == nodes[2] ? !one || holding.stale : !one && !other) ++wrong;
      }
      if (seen.size() != found->size()) ++wrong;
      if (seen.size() != nodes.size()) ++wrong;
      ++lookups;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) threads.emplace_back(tell, i);
  for (int i = 0; i < 2; ++i) threads.emplace_back(look);
  threads.emplace_back(sweep);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(refused == 0);
  REQUIRE(wrong == 0);
  REQUIRE(lookups > 0);
}

}  // namespace
}  // namespace kvist::controller
