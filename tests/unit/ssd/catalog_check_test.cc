#include "storage/ssd/catalog_check.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace kvist::ssd {
namespace {

ChunkRow Row(uint8_t key, uint32_t unit) {
  ChunkRow row;
  row.id.key.bytes[0] = key;
  row.places.push_back({1, unit});
  return row;
}

TEST_CASE("WhyTooOld finds segments that came after the catalog") {
  const std::vector<SegmentRow> rows = {{.number = 1, .state = SegmentState::kFull, .epoch = 5, .secret = {}},
                                        {.number = 2, .state = SegmentState::kOpen, .epoch = 6, .secret = {}}};
  const auto why = [&](std::vector<SegmentToRead> found) { return WhyTooOld(rows, found).value_or(""); };
  CHECK(why({}).empty());
  CHECK(why({{1, 5, 10}, {2, 6, 10}}).empty());
  CHECK(why({{1, 4, 10}}).empty());  // its row was committed, and a crash came before its header
  CHECK(absl::StrContains(why({{1, 5, 10}, {2, 7, 10}}), "segment 2 in epoch 6"));
  CHECK(absl::StrContains(why({{3, 1, 10}}), "doesn't know segment 3"));
}

// The record of shard 0 of that row.
RecordHeader RecordOf(const ChunkRow& row) {
  RecordHeader header{};
  header.kind = RecordKind::kShard;
  header.segment = row.places[0].segment;
  header.unit = row.places[0].unit;
  header.key = row.id.key;
  header.group = row.id.group;
  return header;
}

TEST_CASE("A catalog's rows are held against the good records, and what is broken is put right by them") {
  const ChunkRow fine = Row(1, 10), gone = Row(2, 20), old = Row(3, 30), newer = Row(3, 31), freed = Row(7, 70);
  ChunkRow moved = Row(4, 40), copy = Row(4, 41);  // a broken row of which a good copy lies elsewhere
  ChunkRow hung = Row(5, 50), other_parent = Row(5, 50);
  other_parent.parent.emplace();
  ChunkRow placed = Row(6, 60), other_position = Row(6, 60);
  other_position.id.position = 7;
  ChunkRow taken = Row(8, 10);  // leads to a good record, of another chunk
  GoodRecords good;
  for (const ChunkRow& row : {fine, old, newer, copy, hung, placed, freed}) good.Add(RecordOf(row), 0);
  CHECK(good.count() == 7);
  const std::vector<ChunkRow> rows = {fine, gone, old, moved, hung, placed, taken};
  const std::vector<ChunkRow> records = {fine, newer, copy, other_parent, other_position, freed};
  const auto all = [](uint32_t) { return true; };
  const CatalogCheck check = HoldAgainst(rows, records, good, all);
  CHECK(check.rows == 7);
  CHECK(check.good == 2);  // `old`, too: of two good records the row may name either
  CHECK(check.broken == 3);
  CHECK(check.misplaced == 2);
  CHECK(check.unlisted == 1);
  CHECK_FALSE(check.sound());

  // By key: what the repair leaves.
  std::map<std::string, bool> there;
  for (const CatalogBatch::Change& change : check.repair.list()) there[std::string(change.row.key())] = !change.erase;
  CHECK(there == std::map<std::string, bool>{{ChunkRowKey(gone.id), false},
                                             {ChunkRowKey(copy.id), true},
                                             {ChunkRowKey(hung.id), true},
                                             {ChunkRowKey(placed.id), false},
                                             {ChunkRowKey(other_position.id), true},
                                             {ChunkRowKey(taken.id), false}});
  CHECK(HoldAgainst({&fine, 1}, {&fine, 1}, good, all).sound());

  // What couldn't be read is neither good nor broken, and left alone.
  const CatalogCheck unread = HoldAgainst({&gone, 1}, {}, good, [](uint32_t segment) { return segment != 1; });
  CHECK(unread.unread == 1);
  CHECK(unread.repair.changes() == 0);
  CHECK_FALSE(unread.sound());
}

}  // namespace
}  // namespace kvist::ssd
