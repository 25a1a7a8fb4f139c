#include "tests/bench/optimal.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace kvist::bench {
namespace {

using Blocks = std::set<uint64_t>;

// The most hits of all ways to choose what stays after each request: any set of at most `capacity` blocks whose prefixes are in it,
// of what was there and what the request brought.
uint64_t BestOfAll(const std::vector<std::vector<uint64_t>>& requests, size_t capacity) {
  std::map<uint64_t, uint64_t> parent;
  for (const auto& path : requests) {
    for (size_t i = 1; i < path.size(); ++i) parent[path[i]] = path[i - 1];
  }
  std::map<Blocks, uint64_t> best = {{{}, 0}};
  for (const auto& path : requests) {
    std::map<Blocks, uint64_t> after;
    for (const auto& [there, hits_before] : best) {
      uint64_t hits = hits_before;
      for (const uint64_t block : path) {
        if (!there.contains(block)) break;
        ++hits;
      }
      Blocks could = there;
      could.insert(path.begin(), path.end());
      const std::vector<uint64_t> all(could.begin(), could.end());
      for (uint32_t bits = 0; bits < 1u << all.size(); ++bits) {
        Blocks kept;
        for (size_t i = 0; i < all.size(); ++i) {
          if ((bits >> i & 1) != 0) kept.insert(all[i]);
        }
        const bool closed = std::ranges::all_of(
            kept, [&](uint64_t block) { return !parent.contains(block) || kept.contains(parent[block]); });
        if (kept.size() > capacity || !closed) continue;
        uint64_t& known = after[kept];
        known = std::max(known, hits);
      }
    }
    best = std::move(after);
  }
  uint64_t most = 0;
  for (const auto& [kept, hits] : best) most = std::max(most, hits);
  return most;
}

TEST_CASE("OptimalHits is what no choice of blocks can beat") {
  std::mt19937 random(5);
  uint64_t total = 0;
  for (int round = 0; round < 150; ++round) {
    // Paths in a tree where block n hangs on block n / 2: 1; 2, 3; 4 to 7.
    std::vector<std::vector<uint64_t>> requests(3 + random() % 6);
    for (auto& path : requests) {
      for (uint64_t block = 1 + random() % 7; block > 0; block /= 2) path.insert(path.begin(), block);
    }
    const size_t capacity = 1 + random() % 4;
    INFO("round " << round);
    const uint64_t hits = OptimalHits(requests, capacity);
    REQUIRE(hits == BestOfAll(requests, capacity));
    total += hits;
  }
  REQUIRE(total > 300);
}

TEST_CASE("OptimalHits finds all reuse when there is room for all") {
  CHECK(OptimalHits(std::vector<std::vector<uint64_t>>{{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}, {9}}, 100) == 2 + 3);
  CHECK(OptimalHits(std::vector<std::vector<uint64_t>>{{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}, {9}}, 2) == 2 + 2);
  CHECK(OptimalHits({}, 3) == 0);
}

}  // namespace
}  // namespace kvist::bench
