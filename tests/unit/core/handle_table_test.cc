#include "daemon/core/handle_table.h"

#include <catch2/catch.hpp>

#include "storage/base/ids.h"

namespace kvist::core {
namespace {

TEST_CASE("HandleTable refuses a handle when its record has gone, also after the place is reused") {
  HandleTable<OpId, int> table;
  const OpId first = table.Insert(1);
  REQUIRE(first);
  REQUIRE(*table.Find(first) == 1);
  REQUIRE(table.Take(first) == 1);
  REQUIRE(table.Find(first) == nullptr);
  const OpId second = table.Insert(2);
  REQUIRE(second.index == first.index);
  REQUIRE(table.Find(first) == nullptr);
  REQUIRE(*table.Find(second) == 2);
  REQUIRE(table.size() == 1);
}

TEST_CASE("HandleTable refuses handles that never were one") {
  HandleTable<OpId, int> table;
  REQUIRE(table.Find({}) == nullptr);
  const OpId op = table.Insert(1);
  REQUIRE(table.Find({op.index, 0}) == nullptr);
  REQUIRE(table.Find({op.index, op.generation + 1}) == nullptr);
  REQUIRE(table.Find({op.index, op.generation + 2}) == nullptr);
  REQUIRE(table.Find({op.index + 1, op.generation}) == nullptr);
  REQUIRE(table.Find({UINT32_MAX, UINT32_MAX}) == nullptr);
}

TEST_CASE("HandleTable visits what is alive, in the order of places") {
  HandleTable<OpId, int> table;
  table.Insert(1);
  const OpId b = table.Insert(2);
  table.Insert(3);
  table.Take(b);
  int sum = 0;
  table.ForEach([&](OpId, int value) { sum = sum * 10 + value; });
  REQUIRE(sum == 13);
}

}  // namespace
}  // namespace kvist::core
