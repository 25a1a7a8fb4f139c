#include "storage/ssd/use_rows.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

// Lives of an owner over one catalog, which loses no batch.
struct UseRowsWorld {
  std::map<std::string, std::string> rows;
  size_t batches = 0;

  struct Life {
    explicit Life(UseRowsWorld* world)
        : uses([world](const CatalogBatch& batch) {
            ++world->batches;
            for (const CatalogBatch::Change& change : batch.list()) {
              if (change.erase) {
                world->rows.erase(std::string(change.row.key()));
              } else {
                CHECK(world->rows.emplace(change.row.key(), change.row.value()).second);  // each is written once
              }
            }
          }) {
      for (const auto& [key, value] : world->rows) uses.Found(ParseUse(key, value).value());
    }
    UseRows uses;
  };
};

std::vector<ChunkUse> Used(std::initializer_list<uint64_t> chunks) {
  std::vector<ChunkUse> used;
  for (const uint64_t n : chunks) used.push_back({1, 2, DigestOf<ChunkKey>(n)});
  return used;
}

// {period, bytes} and the chunks.
using Told = std::vector<std::tuple<int32_t, uint64_t, std::vector<ChunkUse>>>;
Told AsTold(const std::vector<UsesNote>& notes) {
  Told told;
  for (const UsesNote& note : notes) told.emplace_back(note.period, note.written.value, note.chunks);
  return told;
}

TEST_CASE("Uses are found by the period in which they were, counted from the one that ran last") {
  UseRowsWorld world;
  {
    UseRowsWorld::Life life(&world);
    CHECK(life.uses.Begin().empty());
    life.uses.Note({0, Bytes{10}, Used({1, 2})});
    life.uses.Note({0, Bytes{20}, Used({3})});
    life.uses.Note({1, Bytes{5}, Used({1})});
  }
  const Told expected{{-1, 10, Used({1, 2})}, {-1, 20, Used({3})}, {0, 5, Used({1})}};
  {
    UseRowsWorld::Life life(&world);
    CHECK(AsTold(life.uses.Begin()) == expected);
    life.uses.Note({0, Bytes{7}, Used({4})});  // the same period goes on
    life.uses.Note({-1, Bytes{}, Used({5})});  // of before, told late
    life.uses.Note({-2, Bytes{}, Used({6})});  // of before there was any
    life.uses.Note({1, Bytes{}, {}});          // one begins, and nothing is used
  }
  UseRowsWorld::Life life(&world);
  CHECK(AsTold(life.uses.Begin()) == Told{{-2, 10, Used({1, 2})},
                                          {-2, 20, Used({3})},
                                          {-2, 0, Used({5})},
                                          {-1, 5, Used({1})},
                                          {-1, 7, Used({4})},
                                          {0, 0, {}}});
}

TEST_CASE("Uses of periods that matter no longer have no rows") {
  UseRowsWorld world;
  int32_t told = 0;
  for (int life = 0; life < 5; ++life) {
    UseRowsWorld::Life of(&world);
    for (const UsesNote& note : of.uses.Begin()) told = std::min(told, note.period);
    for (int32_t period = 0; period < 7; ++period) {
      for (uint64_t n = 0; n < 4; ++n) of.uses.Note({period, Bytes{n}, Used({n})});
      // The period in which the last life ended has its rows, too.
      CHECK(world.rows.size() <= 4 * UseRows::kPeriods + 4);
    }
    of.uses.Note({7 - static_cast<int32_t>(UseRows::kPeriods) - 1, Bytes{}, Used({9})});
    CHECK(world.rows.size() <= 4 * UseRows::kPeriods);
  }
  CHECK(told == -2);
}

// What a crash has left behind of erasures: an old period's rows beside later ones'.
TEST_CASE("Uses of old periods that are found go with the next note, and aren't told") {
  UseRowsWorld world;
  for (const uint32_t period : {3u, 4u, 9u, 10u}) {
    const EncodedRow row = Encode(UseRow{.period = period, .part = 6, .written = 1, .chunks = Used({period})});
    world.rows.emplace(row.key(), row.value());
  }
  UseRowsWorld::Life life(&world);
  CHECK(AsTold(life.uses.Begin()) == Told{{-1, 1, Used({9})}, {0, 1, Used({10})}});
  CHECK(world.rows.size() == 4);
  life.uses.Note({0, Bytes{2}, Used({11})});
  CHECK(world.rows.size() == 3);
  CHECK(world.rows.contains(UseKey(10, 7)));
}

TEST_CASE("What is noted before the rows were found waits, in bounds; for ever when they never are") {
  UseRowsWorld world;
  {
    UseRowsWorld::Life life(&world);
    life.uses.Begin();
    life.uses.Note({0, Bytes{1}, Used({1})});
    life.uses.Note({1, Bytes{1}, Used({2})});
  }
  {
    UseRowsWorld::Life life(&world);
    life.uses.Note({0, Bytes{}, Used({3})});
    life.uses.Note({1, Bytes{}, Used({4})});
    CHECK(world.batches == 2);
    CHECK(life.uses.Begin().size() == 2);
    CHECK(world.batches == 4);
    CHECK(world.rows.contains(UseKey(1, 1)));
    CHECK(world.rows.contains(UseKey(2, 0)));
  }
  UseRowsWorld::Life life(&world);
  for (size_t n = 0; n < UseRows::kWaitingMax + 10; ++n) life.uses.Note({0, Bytes{}, Used({n})});
  CHECK(world.batches == 4);
  life.uses.Begin();
  CHECK(world.batches == 4 + UseRows::kWaitingMax);
}

TEST_CASE("A period has only so many rows, and time has an end") {
  UseRowsWorld world;
  for (const uint32_t period : {UINT32_MAX - 1, UINT32_MAX}) {
    const EncodedRow row = Encode(UseRow{.period = period, .part = kUsePartsMax - 1, .written = 1, .chunks = {}});
    world.rows.emplace(row.key(), row.value());
  }
  UseRowsWorld::Life life(&world);
  CHECK(life.uses.Begin().size() == 2);
  life.uses.Note({0, Bytes{}, Used({1})});
  life.uses.Note({1, Bytes{}, Used({1})});
  CHECK(world.rows.size() == 2);
}

}  // namespace
}  // namespace kvist::ssd
