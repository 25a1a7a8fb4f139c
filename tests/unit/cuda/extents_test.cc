#include "cuda/extents.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

std::vector<Extent> Walk(const Copy& copy, LayerIndex layer, PieceOrder order, PieceRange range) {
  std::vector<Extent> extents;
  ExtentCursor cursor(copy, layer, order, range);
  for (Extent extent; cursor.Next(&extent);) extents.push_back(extent);
  return extents;
}

TEST_CASE("ExtentCursor joins what follows each other on both sides, and only that") {
  const NamedLayout plain = KnownLayouts()[0];
  KvWorld world(plain, Seal::kShrink, 2, 1);
  Rng rng(1);
  Copy copy = world.MakeCopy({1, 1}, Direction::kStore, {0, 1}, rng);

  copy.page_table = {{4}, {5}, {6}, {7}, {8}, {9}, {2}, {1}};
  const std::vector<Extent> extents = Walk(copy, {1}, PieceOrder::kSlot, {0, PiecesPerLayer(copy)});
  REQUIRE(extents.size() == 4);
  CHECK(extents[0].length == 4 * 1024);  // pages 4 to 7; page 8 goes to the other slot
  CHECK(extents[0].at.value == plain.layout.layers[1].offset.value + 4 * 1024);
  CHECK(extents[0].slot == world.slot(0) + 4096 + 4 * 1024);
  CHECK(extents[1].length == 2 * 1024);
  CHECK(extents[2].length == 1024);  // 2 and then 1: neighbours in the wrong order
  CHECK(extents[3].slot == world.slot(1) + 4096 + 4 * 1024 + 3 * 1024);
}

TEST_CASE("ExtentCursor keeps pages with a gap apart, and segments that the slot keeps apart") {
  Rng rng(1);
  for (const NamedLayout& named : KnownLayouts()) {
    if (named.name != "a gap after each page" && named.name != "K and V in the page") continue;
    KvWorld world(named, Seal::kShrink, 1, 1);
    Copy copy = world.MakeCopy({1, 1}, Direction::kStore, {0}, rng);
    copy.page_table = {{4}, {5}, {6}, {7}};
    CHECK(Walk(copy, {0}, PieceOrder::kSlot, {0, 8}).size() == 8);
    CHECK(Walk(copy, {0}, PieceOrder::kPage, {0, 8}).size() == 8);
  }
}

TEST_CASE("ExtentCursor gives the same bytes however the range is cut and ordered") {
  Rng rng(2);
  for (const NamedLayout& named : KnownLayouts()) {
    INFO(named.name);
    KvWorld world(named, Seal::kShrink, 3, 1);
    const Copy copy = world.MakeCopy({1, 1}, Direction::kLoad, {2, 0, 1}, rng);
    const uint64_t pieces = PiecesPerLayer(copy);
    for (const PieceOrder order : {PieceOrder::kSlot, PieceOrder::kPage}) {
      uint64_t bytes = 0;
      for (uint64_t first = 0; first < pieces;) {
        const uint64_t end = std::min<uint64_t>(pieces, first + 1 + rng() % 7);
        for (const Extent& extent : Walk(copy, {1}, order, {first, end})) bytes += extent.length;
        first = end;
      }
      CHECK(bytes == pieces * named.layout.segment_bytes.value);
    }
  }
}

TEST_CASE("ExtentCursor stops the process at a page that does not exist") {
  KvWorld world(KnownLayouts()[0], Seal::kShrink, 1, 1);
  Rng rng(1);
  Copy copy = world.MakeCopy({1, 1}, Direction::kStore, {0}, rng);
  copy.page_table[3] = {world.layout().pages};
  CHECK(test::InChild([&] {
          Walk(copy, {0}, PieceOrder::kSlot, {0, 4});
          return 0;
        }) == -SIGABRT);
}

}  // namespace
}  // namespace kvist::cuda
