#include "daemon/core/chunk_table.h"

#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr SpaceId kSpace{3};
constexpr GroupId kGroup{1};

struct TableAlone {
  pool::HeapSections sections;
  ChunkTable table{KeyHash{{1, 2, 3, 4}}, &sections};
};

// A chain of sealed chunks with keys first, first + 1, ..; the deepest.
ChunkIndex AddChain(ChunkTable* table, uint64_t first, uint32_t count, ChunkIndex parent = kNoChunk) {
  for (uint32_t k = 0; k < count; ++k) {
    parent = table->Add(kSpace, kGroup, KeyOf(first + k), parent, 0);
    (*table)[parent].state = ChunkState::kSealed;
  }
  return parent;
}

size_t Prefix(const ChunkTable& table, const std::vector<ChunkKey>& keys, uint32_t epoch = 0) {
  std::vector<ChunkIndex> path{7, 7, 7};
  table.FindPrefix(kSpace, kGroup, epoch, keys, &path);
  return path.size();
}

TEST_CASE("ChunkTable finds a chunk by space, group and key, and not when one differs") {
  TableAlone alone;
  ChunkTable& table = alone.table;
  const ChunkIndex i = table.Add(kSpace, kGroup, KeyOf(1), kNoChunk, 0);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(1)) == i);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(2)) == kNoChunk);
  REQUIRE(table.Find(SpaceId{4}, kGroup, KeyOf(1)) == kNoChunk);
  REQUIRE(table.Find(kSpace, GroupId{0}, KeyOf(1)) == kNoChunk);
}

TEST_CASE("ChunkTable finds a prefix when it is longer than a batch, and stops at the first gap") {
  TableAlone alone;
  ChunkTable& table = alone.table;
  const uint32_t count = GENERATE(1u, 15u, 16u, 17u, 32u, 33u, 100u);
  AddChain(&table, 0, count);
  std::vector<ChunkKey> keys;
  for (uint64_t k = 0; k < count; ++k) keys.push_back(KeyOf(k));
  REQUIRE(Prefix(table, keys) == count);
  keys.push_back(KeyOf(1000));
  REQUIRE(Prefix(table, keys) == count);
  table[table.Find(kSpace, kGroup, KeyOf(count / 2))].state = ChunkState::kFilling;
  REQUIRE(Prefix(table, keys) == count / 2);
  REQUIRE(Prefix(table, {}) == 0);
}

TEST_CASE("ChunkTable takes no prefix from another epoch, or by keys that hang elsewhere") {
  TableAlone alone;
  ChunkTable& table = alone.table;
  AddChain(&table, 0, 3);
  AddChain(&table, 10, 3);
  REQUIRE(Prefix(table, KeysOf({0, 1, 2})) == 3);
  REQUIRE(Prefix(table, KeysOf({0, 1, 2}), 1) == 0);
  REQUIRE(Prefix(table, KeysOf({0, 11, 12})) == 1);  // 11 hangs on 10
  REQUIRE(Prefix(table, KeysOf({1, 2})) == 0);       // 1 isn't the first of a chain
  REQUIRE(Prefix(table, KeysOf({0, 0})) == 1);
  REQUIRE(Prefix(table, KeysOf({0, 2})) == 1);
}

TEST_CASE("ChunkTable reuses the place of a removed chunk under a new generation") {
  TableAlone alone;
  ChunkTable& table = alone.table;
  const ChunkIndex root = table.Add(kSpace, kGroup, KeyOf(1), kNoChunk, 0);
  const ChunkIndex child = table.Add(kSpace, kGroup, KeyOf(2), root, 0);
  REQUIRE(table[root].children == 1);
  REQUIRE(table[child].position == 1);
  const uint32_t generation = table[child].generation;
  REQUIRE(table.Remove(child) == root);
  REQUIRE(table[root].children == 0);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(2)) == kNoChunk);
  REQUIRE(table.Add(kSpace, kGroup, KeyOf(3), root, 0) == child);
  REQUIRE(table[child].generation > generation);
  REQUIRE(table.size() == 2);
}

TEST_CASE("ChunkTable finds the newer chunk when an older one of the same key was detached") {
  TableAlone alone;
  ChunkTable& table = alone.table;
  const ChunkIndex old = table.Add(kSpace, kGroup, KeyOf(1), kNoChunk, 0);
  table.Detach(old);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(1)) == kNoChunk);
  const ChunkIndex fresh = table.Add(kSpace, kGroup, KeyOf(1), kNoChunk, 1);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(1)) == fresh);
  table.Remove(old);
  REQUIRE(table.Find(kSpace, kGroup, KeyOf(1)) == fresh);
}

}  // namespace
}  // namespace kvist::core
