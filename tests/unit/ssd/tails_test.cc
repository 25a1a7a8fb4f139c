#include "storage/ssd/tails.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace kvist::ssd {
namespace {

struct Chunk {
  std::optional<Standing> row;  // nothing: it has none
  std::optional<Standing> tail;
  bool whole = true;  // the tail
};

ChunkRow Row(uint32_t number, bool tail, std::mt19937* random) {
  ChunkRow row;
  row.id.space = 1 + number % 2;
  row.id.position = number / 5;
  const uint64_t spread = number * 0x9e3779b97f4a7c15;
  std::memcpy(row.id.key.bytes.data(), &spread, sizeof spread);
  row.sequence = tail ? 1'000 + number : number;
  row.units = 2;
  row.places.push_back({tail ? 7U : 3U, static_cast<uint32_t>(1 + (*random)() % 100)});
  return row;
}

auto InOrder(const ChunkRow& row) { return std::tie(row.id.position, row.id.space, row.id.group, row.id.key); }

}  // namespace

TEST_CASE("what has lost its row comes where its row would have been, and once", "[ssd]") {
  std::mt19937 random(20'261'128);
  for (int round = 0; round < 500; ++round) {
    std::map<ChunkKey, Chunk> chunks;
    std::vector<ChunkRow> rows;
    Tails tails;
    const auto standing = [&] { return static_cast<Standing>(random() % 3); };
    for (uint32_t number = 0; number < 60; ++number) {
      Chunk chunk;
      if (random() % 3 != 0) {
        chunk.row = standing();
        rows.push_back(Row(number, false, &random));
        chunks[rows.back().id.key] = chunk;
      }
      if (random() % 3 == 0) {
        const ChunkRow tail = Row(number, true, &random);
        Chunk& of = chunks[tail.id.key];
        of.tail = random() % 4 == 0 ? Standing::kDead : Standing::kUsable;
        of.whole = random() % 4 != 0;
        ChunkRow older = tail;
        older.sequence = 0;
        if (random() % 2 == 0) tails.Note(older);
        tails.Note(tail);
      }
    }
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return InOrder(a) < InOrder(b); });

    std::set<uint64_t> asked;
    const auto judge = [&](const ChunkRow& row) {
      CHECK(asked.insert(row.sequence).second);
      const Chunk& chunk = chunks.at(row.id.key);
      return row.sequence >= 1'000 ? *chunk.tail : *chunk.row;
    };
    const auto is_whole = [&](const ChunkRow& row) {
      CHECK(row.sequence >= 1'000);  // of two records the last
      return chunks.at(row.id.key).whole;
    };
    std::vector<ChunkRow> usable;
    std::set<ChunkKey> adopted, withheld, dead;
    const auto take = [&](Tails::Sifted sifted) {
      usable.insert(usable.end(), sifted.usable.begin(), sifted.usable.end());
      for (const ChunkRow& row : sifted.adopted) CHECK(adopted.insert(row.id.key).second);
      for (const ChunkRow& row : sifted.withheld) CHECK(withheld.insert(row.id.key).second);
      for (const ChunkId& id : sifted.dead) CHECK(dead.insert(id.key).second);
    };
    for (size_t at = 0; at < rows.size();) {
      const size_t some = std::min<size_t>(1 + random() % 20, rows.size() - at);
      take(tails.Sift({rows.begin() + at, rows.begin() + at + some}, judge, is_whole));
      at += some;
    }
    take(tails.Rest(judge, is_whole));
    CHECK(tails.Segments().empty());

    CHECK(
        std::is_sorted(usable.begin(), usable.end(), [](const auto& a, const auto& b) { return InOrder(a) < InOrder(b); }));
    std::map<ChunkKey, uint64_t> got;
    for (const ChunkRow& row : usable) CHECK(got.emplace(row.id.key, row.sequence).second);
    for (const auto& [key, chunk] : chunks) {
      const bool by_row = chunk.row == Standing::kUsable;
      const bool by_tail = !by_row && chunk.row != Standing::kWithheld && chunk.tail == Standing::kUsable && chunk.whole;
      CHECK(got.contains(key) == (by_row || by_tail));
      if (got.contains(key)) CHECK((got.at(key) >= 1'000) == by_tail);
      CHECK(adopted.contains(key) == by_tail);
      CHECK(withheld.contains(key) == (chunk.row == Standing::kWithheld));
      CHECK(dead.contains(key) == (chunk.row == Standing::kDead && !by_tail));
    }
  }
}

TEST_CASE("what lies where the disk refuses a flush is forgotten", "[ssd]") {
  std::mt19937 random(1);
  Tails tails;
  for (uint32_t number = 0; number < 4; ++number) {
    ChunkRow row = Row(number, true, &random);
    row.places[0].segment = number;
    row.places.push_back({number + 1, 5});
    tails.Note(row);
  }
  CHECK(tails.Segments() == std::set<uint32_t>{0, 1, 2, 3, 4});
  tails.Forget([](Place place) { return place.segment == 2; });
  CHECK(tails.Segments() == std::set<uint32_t>{0, 1, 3, 4});
  const Tails::Sifted rest =
      tails.Rest([](const ChunkRow&) { return Standing::kUsable; }, [](const ChunkRow&) { return true; });
  CHECK(rest.usable.size() == 2);
}

}  // namespace kvist::ssd
