#include "storage/ssd/catalog_check.h"

#include <catch2/catch.hpp>
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

TEST_CASE("Compare tells rows and records apart in both directions") {
  ChunkRow moved = Row(3, 30), elsewhere = Row(3, 31);
  ChunkRow hung = Row(4, 40), other_parent = Row(4, 40);
  other_parent.parent.emplace();
  ChunkRow placed = Row(5, 50), other_position = Row(5, 50);
  other_position.id.position = 7;
  ChunkRow used = Row(6, 60), unused = Row(6, 60);
  used.hints = 1;
  used.last_use = 2;
  const CatalogComparison compared = Compare({used, placed, hung, moved, Row(1, 10), Row(0, 1)},
                                             {Row(2, 20), Row(0, 1), elsewhere, other_parent, other_position, unused}, 10);
  CHECK(compared.rows == 6);
  CHECK(compared.records == 6);
  CHECK(compared.same == 2);
  CHECK(compared.no_record == 1);
  CHECK(compared.no_row == 1);
  CHECK(compared.elsewhere == 1);
  CHECK(compared.other_tree == 2);
  CHECK_FALSE(compared.agrees());
  REQUIRE(compared.first.size() == 5);
  CHECK(compared.first[0].kind == CatalogDifference::kNoRecord);
  CHECK(compared.first[0].chunk == Row(1, 10).id);
  CHECK(compared.first[1].kind == CatalogDifference::kNoRow);
  CHECK(compared.first[2].kind == CatalogDifference::kElsewhere);
  CHECK(compared.first[4].chunk.position == 7);

  CHECK(Compare({}, {Row(1, 1), Row(2, 1), Row(3, 1)}, 2).first.size() == 2);
  CHECK(Compare({}, {Row(1, 1), Row(2, 1), Row(3, 1)}, 2).no_row == 3);
  CHECK(Compare({Row(1, 1)}, {Row(1, 1), Row(2, 1)}, 2).agrees());
}

}  // namespace
}  // namespace kvist::ssd
