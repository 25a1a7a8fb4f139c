#include "daemon/core/key_index.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <unordered_map>
#include <vector>

namespace kvist::core {
namespace {

// All chunks that the index offers for `hash`.
std::vector<ChunkIndex> All(const KeyIndex& index, uint32_t hash) {
  std::vector<ChunkIndex> found;
  index.Find(hash, [&](ChunkIndex chunk) {
    found.push_back(chunk);
    return false;
  });
  std::sort(found.begin(), found.end());
  return found;
}

TEST_CASE("KeyIndex does what a multimap does when hashes are few and runs are long") {
  const uint32_t hash_mask = GENERATE(0xfu, 0x3ffu, 0xffff00ffu, 0xffffffffu);
  std::mt19937_64 random(hash_mask);
  KeyIndex index;
  std::unordered_multimap<uint32_t, ChunkIndex> model;
  std::vector<std::pair<uint32_t, ChunkIndex>> live;
  ChunkIndex next = 0;
  const size_t most = hash_mask < 0x100 ? 400 : 20000;  // few hashes make every probe long
  const int steps = hash_mask < 0x100 ? 4000 : 60000;
  for (int step = 0; step < steps; ++step) {
    // Waves of growth and shrinking.
    const bool insert = live.empty() || (live.size() < most && random() % 100 < (step / 7000 % 2 == 0 ? 80u : 30u));
    if (insert) {
      const auto hash = static_cast<uint32_t>(random()) & hash_mask;
      index.Insert(hash, next);
      model.emplace(hash, next);
      live.emplace_back(hash, next++);
    } else {
      const size_t at = random() % live.size();
      const auto [hash, chunk] = live[at];
      index.Erase(hash, chunk);
      const auto [begin, end] = model.equal_range(hash);
      for (auto it = begin; it != end; ++it) {
        if (it->second == chunk) {
          model.erase(it);
          break;
        }
      }
      live[at] = live.back();
      live.pop_back();
    }
    REQUIRE(index.size() == model.size());
    if (step % 16 != 0) continue;
    const uint32_t probe =
        live.empty() || random() % 2 == 0 ? static_cast<uint32_t>(random()) & hash_mask : live[random() % live.size()].first;
    std::vector<ChunkIndex> expected;
    const auto [begin, end] = model.equal_range(probe);
    for (auto it = begin; it != end; ++it) expected.push_back(it->second);
    std::sort(expected.begin(), expected.end());
    REQUIRE(All(index, probe) == expected);
  }
  for (const auto& [hash, chunk] : live) {
    REQUIRE(index.Find(hash, [&, wanted = chunk](ChunkIndex c) { return c == wanted; }) == chunk);
  }
}

TEST_CASE("KeyIndex finds everything at every moment of its growth") {
  KeyIndex index;
  const auto hash_of = [](ChunkIndex i) { return i * 2654435761u; };
  uint64_t memory = index.memory_bytes();
  for (ChunkIndex i = 0; i < 20000; ++i) {
    index.Insert(hash_of(i), i);
    const bool grew = index.memory_bytes() > memory;  // a new table has just begun: the old one still holds nearly all
    memory = index.memory_bytes();
    if (!grew && i % 1000 != 0) continue;
    for (ChunkIndex j = 0; j <= i; ++j) REQUIRE(index.Find(hash_of(j), [&](ChunkIndex c) { return c == j; }) == j);
  }
  REQUIRE(index.memory_bytes() <= 20000 * 18 + 8192);
}

TEST_CASE("KeyIndex finds nothing when it is empty") {
  const KeyIndex index;
  REQUIRE(index.Candidate(0) == kNoChunk);
  REQUIRE(index.Candidate(UINT32_MAX) == kNoChunk);
}

TEST_CASE("KeyHash depends on space, group, key and seed") {
  const KeyHash hash{{0x9ae16a3b2f90404f, 0xc949d7c7509e6557, 0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53}};
  KeyHash other = hash;
  other.seed[3] ^= 1;
  ChunkKey key;
  const uint32_t base = hash(SpaceId{1}, GroupId{2}, key);
  REQUIRE(base == hash(SpaceId{1}, GroupId{2}, key));
  REQUIRE(base != hash(SpaceId{2}, GroupId{2}, key));
  REQUIRE(base != hash(SpaceId{1}, GroupId{3}, key));
  REQUIRE(base != other(SpaceId{1}, GroupId{2}, key));
  for (uint8_t& byte : key.bytes) {
    byte ^= 1;
    REQUIRE(base != hash(SpaceId{1}, GroupId{2}, key));
    byte ^= 1;
  }
}

}  // namespace
}  // namespace kvist::core
