// When chunks on disk were used last, over the ends of daemons.
#include <catch2/catch.hpp>
#include <vector>

#include "daemon/core/disk_ages.h"
#include "daemon/core/use_notes.h"
#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

// A disk of twelve chunks: with each that is written a period begins.
CoreFixture::Options SmallDisk() {
  CoreFixture::Options options = ThreeTiersOptions();
  options.core.disk->capacity = KiB(48);
  return options;
}

class Node : public ThreeTiers {
 public:
  using ThreeTiers::ThreeTiers;
  void KeepOnDisk(const std::vector<ChunkKey>& keys) {
    Keep(keys);
    Flush();
    REQUIRE(Move(Tier::kDram, Tier::kSsd, keys).chunks == keys.size());
  }
  void Age(int periods) {
    for (; periods > 0; --periods) KeepOnDisk({KeyOf(++others_)});
  }
  // Whether it is written again when its room is wanted; else it is gone.
  bool IsKept(uint64_t n) {
    const auto was = places.at(KeyOf(n));
    Reclaim({KeyOf(n)});
    return rows.contains(KeyOf(n)) && places.at(KeyOf(n)) != was;
  }

 private:
  uint64_t others_ = 100;
};

TEST_CASE("What is on disk and was used lately is written again when its room is wanted, also by a later daemon") {
  Node node(SmallDisk());
  for (uint64_t n = 1; n <= 4; ++n) node.KeepOnDisk({KeyOf(n)});
  node.Age(8);
  REQUIRE(node.Hits(KeysOf({1})) == 1);
  node.Age(1);
  REQUIRE(node.Hits(KeysOf({2})) == 1);
  const int restarts = GENERATE(0, 1, 3);
  for (int i = 0; i < restarts; ++i) {
    node.Flush();  // that hands on what waits
    node.Restart(SmallDisk());
  }
  SECTION("as long ago as it is") {
    CHECK(node.IsKept(2));
    CHECK(node.IsKept(1));
    CHECK_FALSE(node.IsKept(3));
  }
  SECTION("time goes on") {
    node.Age(2);
    CHECK(node.IsKept(2));
    CHECK_FALSE(node.IsKept(1));
  }
  SECTION("it is used once more") {
    REQUIRE(node.Hits(KeysOf({1})) == 1);
    node.Age(2);
    CHECK(node.IsKept(1));  // which takes another period
    CHECK_FALSE(node.IsKept(2));
  }
}

TEST_CASE("What a later daemon isn't told was used counts as not used lately") {
  Node node(SmallDisk());
  node.KeepOnDisk({KeyOf(1)});
  node.KeepOnDisk({KeyOf(2)});
  REQUIRE(node.Hits(KeysOf({1})) == 1);
  node.Flush();
  node.uses.clear();
  node.Restart(SmallDisk());
  CHECK_FALSE(node.IsKept(1));
  // Nor what is told of and isn't there, is not on a disk, or is another space's or group's.
  node.Keep({KeyOf(9)});
  node.Do(UsesFound{
      {0,
       Bytes{},
       {{SpaceId{0}, GroupId{}, KeyOf(8)}, {SpaceId{0}, GroupId{}, KeyOf(9)}, {SpaceId{7}, GroupId{3}, KeyOf(2)}}}});
  node.Flush();
  for (const DiskUses& of : node.uses) CHECK(of.uses.size() <= 1);  // of the one that was written just now
  CHECK_FALSE(node.IsKept(2));
}

TEST_CASE("A period that has begun goes on in a later daemon") {
  CoreFixture::Options options = ThreeTiersOptions();
  options.core.disk->capacity = KiB(12) * 12;  // three chunks a period
  Node node(options);
  node.KeepOnDisk({KeyOf(1)});
  node.KeepOnDisk({KeyOf(2)});
  REQUIRE_FALSE(node.uses.empty());
  for (int life = 0; life < 3; ++life) {
    // Each ends the period with its first write, and leaves two of the next behind.
    node.Restart(options);
    node.uses.clear();
    node.KeepOnDisk({KeyOf(10 + static_cast<uint64_t>(life) * 3)});
    REQUIRE_FALSE(node.uses.empty());
    CHECK(node.uses.back().period == 1);
    CHECK(node.uses.back().written == Bytes{});
    node.KeepOnDisk({KeyOf(11 + static_cast<uint64_t>(life) * 3)});
    node.KeepOnDisk({KeyOf(12 + static_cast<uint64_t>(life) * 3)});
    CHECK(node.uses.back().period == 1);
    CHECK(node.uses.back().written == KiB(8));
  }
}

TEST_CASE("Uses are noted once in each period, when they are many, a period ends, or all is flushed") {
  Node node(SmallDisk());
  node.KeepOnDisk({KeyOf(1)});
  node.uses.clear();
  for (int i = 0; i < 1000; ++i) REQUIRE(node.Hits(KeysOf({1})) == 1);
  CHECK(node.uses.empty());
  node.Flush();
  const size_t of_written = node.uses.empty() ? 0 : node.uses.back().uses.size();
  CHECK(of_written <= 1);
  node.Age(1);
  node.uses.clear();
  for (int i = 0; i < 1000; ++i) REQUIRE(node.Hits(KeysOf({1})) == 1);
  CHECK(node.uses.empty());
  node.Flush();
  REQUIRE(node.uses.size() == 1);
  REQUIRE(node.uses[0].uses.size() == 1);
  CHECK(node.uses[0].uses[0].key == KeyOf(1));
  node.Flush();
  CHECK(node.uses.size() == 1);

  UseNotes notes;
  const DiskAges ages(KiB(12));
  for (size_t n = 0; n + 1 < UseNotes::kTogether; ++n) {
    notes.Add(0, {SpaceId{0}, GroupId{}, KeyOf(n)});
    CHECK(notes.Take(ages).empty());
  }
  notes.Add(-1, {SpaceId{0}, GroupId{}, KeyOf(1)});
  for (size_t n = 0; n < 10; ++n) notes.Add(0, {SpaceId{0}, GroupId{}, KeyOf(1000 + n)});
  const std::vector<UsesNoted> taken = notes.Take(ages);
  REQUIRE(taken.size() == 3);
  CHECK((taken[0].noted.period == -1 && taken[0].noted.uses.size() == 1));
  CHECK((taken[1].noted.period == 0 && taken[1].noted.uses.size() == UseNotes::kTogether));
  CHECK((taken[2].noted.period == 0 && taken[2].noted.uses.size() == 9));
  CHECK(notes.Take(ages).empty());
}

}  // namespace
}  // namespace kvist::core
