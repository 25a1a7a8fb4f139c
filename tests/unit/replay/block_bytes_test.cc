#include "examples/replay/block_bytes.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

namespace kvist::replay {
namespace {

using Piece = std::vector<std::byte>;

constexpr size_t kBytes = 2048;

PieceName Name() {
  PieceName name;
  name.hash_id = 4711;
  name.key_word = 0x0123'4567'89ab'cdef;
  name.block = 7;
  name.page = 3;
  name.layer = 1;
  name.segment = 1;
  return name;
}

Piece Filled(const PieceName& name) {
  Piece piece(kBytes);
  FillPiece(name, piece);
  return piece;
}

}  // namespace

TEST_CASE("WrongBytes finds every flipped bit") {
  Piece piece = Filled(Name());
  CHECK(WrongBytes(Name(), piece) == 0);
  for (size_t bit = 0; bit < 8 * kBytes; ++bit) {
    piece[bit / 8] ^= std::byte{1} << bit % 8;
    REQUIRE(WrongBytes(Name(), piece) == 1);
    piece[bit / 8] ^= std::byte{1} << bit % 8;
  }
  CHECK(WrongBytes(Name(), piece) == 0);
}

TEST_CASE("FillPiece gives other names other bytes") {
  const Piece piece = Filled(Name());
  std::vector<PieceName> others(6, Name());
  ++others[0].hash_id;
  ++others[1].key_word;
  ++others[2].block;
  ++others[3].page;
  others[4].layer = 0;
  others[5].segment = 0;
  for (const PieceName& other : others) CHECK(WrongBytes(other, piece) > kBytes * 9 / 10);
}

TEST_CASE("FillPiece writes bytes that spread") {
  const Piece piece = Filled(Name());
  std::array<int, 256> counts{};
  for (size_t i = sizeof(PieceName); i < kBytes; ++i) ++counts[static_cast<size_t>(piece[i])];
  CHECK(*std::max_element(counts.begin(), counts.end()) < 40);  // 8 on average
}

TEST_CASE("DescribeOwner names whose bytes lie there") {
  Piece piece = Filled(Name());
  CHECK(DescribeOwner(piece) == "block 7 (hash id 4711), page 3, layer 1, segment 1");
  piece[100] ^= std::byte{1};
  CHECK(DescribeOwner(piece) == "block 7 (hash id 4711), page 3, layer 1, segment 1, with 1 damaged bytes");
  piece[0] ^= std::byte{1};
  CHECK(DescribeOwner(piece) == "no page of a replay, or its name is damaged");
  Poison(piece);
  CHECK(DescribeOwner(piece) == "never written");
  CHECK(WrongBytes(Name(), piece) > kBytes * 9 / 10);
}

TEST_CASE("MakeTokens gives equal ids equal tokens and others others") {
  std::set<std::vector<uint32_t>> seen;
  for (uint64_t id = 0; id < 1000; ++id) {
    std::vector<uint32_t> tokens(512), again(512);
    MakeTokens(id, tokens);
    MakeTokens(id, again);
    REQUIRE(tokens == again);
    CHECK(seen.insert(tokens).second);
  }
}

}  // namespace kvist::replay
