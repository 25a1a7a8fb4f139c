#include "cuda/unit_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace kvist::cuda {
namespace {

constexpr uint64_t kKiB = 1024;

// Every layer's pieces are covered once, in layer-major order, and steps end whole layers. One assertion a plan and not one a unit: there
// are millions, and each costs ThreadSanitizer tens of microseconds.
void CheckCovers(const UnitPlan& plan, uint32_t layers, uint64_t pieces) {
  uint32_t layer = 0;
  uint64_t piece = 0, u = 0;
  for (; u < plan.units(); ++u) {
    const Unit unit = plan.At(u);
    if (unit.step != u / plan.units_per_step() || unit.first_layer != layer || unit.pieces.first != piece ||
        unit.pieces.end < unit.pieces.first)
      break;
    piece = unit.pieces.end;
    if (piece == pieces && (u + 1) % plan.units_per_step() == 0) {
      layer += unit.layer_count;
      piece = 0;
      if (plan.LayersAfter(unit.step + 1) != layer) break;
    }
  }
  INFO(layers << " layers of " << pieces << " pieces, " << plan.units() << " units; as it should be up to unit " << u
              << ", layer " << layer << ", piece " << piece);
  REQUIRE(u == plan.units());
  REQUIRE(piece == 0);
  REQUIRE(layer == layers);
}

TEST_CASE("UnitPlan covers every piece of every layer once, layer by layer") {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t layers = 1 + static_cast<uint32_t>(rng() % 130);
    const uint64_t pieces = 1 + rng() % 3000;
    const uint64_t bytes = uint64_t{1} << rng() % 18;
    CheckCovers(UnitPlan(layers, pieces, bytes), layers, pieces);
    const UnitPlan streamed = UnitPlan::Streamed(layers, pieces, bytes);
    CheckCovers(streamed, layers, pieces);
    REQUIRE(streamed.steps() == layers);
  }
}

TEST_CASE("UnitPlan keeps units near the size it aims at") {
  const UnitPlan large(32, 4096, 64 * kKiB);  // 256 MiB a layer
  CHECK(large.units_per_step() == 128);
  CHECK(large.steps() == 32);

  const UnitPlan small(32, 16, 4 * kKiB);  // a chunk of 2 MiB in all: one thread's work
  CHECK(small.units() == 1);

  const UnitPlan uneven(33, 16, 4 * kKiB);  // two steps of 17 and 16 layers rather than of 32 and 1
  CHECK(uneven.units() == 2);
  CHECK(uneven.LayersAfter(1) == 17);

  const UnitPlan huge_pieces(2, 3, 16384 * kKiB);  // a piece is never split
  CHECK(huge_pieces.units_per_step() == 3);

  const UnitPlan streamed = UnitPlan::Streamed(32, 64, 32 * kKiB);  // 2 MiB a layer, that come one by one
  CHECK(streamed.units_per_step() == 4);
  CHECK(streamed.steps() == 32);
}

TEST_CASE("UnitPlan by chunk has units of neighbouring chunks, or parts of the layers of one, and covers each once") {
  std::mt19937_64 rng(4);
  for (int round = 0; round < 500; ++round) {
    const uint32_t layers = 1 + static_cast<uint32_t>(rng() % 130);
    const uint64_t chunks = 1 + rng() % 300, pieces = 1 + rng() % 40;
    const uint64_t bytes = uint64_t{1} << rng() % 18;
    const UnitPlan plan = UnitPlan::ByChunk(layers, chunks, pieces, bytes);
    REQUIRE(plan.steps() == 1);
    REQUIRE(plan.LayersAfter(1) == layers);
    uint64_t piece = 0;
    uint32_t layer = 0;
    for (uint64_t u = 0; u < plan.units(); ++u) {
      const Unit unit = plan.At(u);
      REQUIRE((unit.first_layer == layer && unit.pieces.first == piece && unit.layer_count > 0));
      REQUIRE(unit.pieces.end % pieces == 0);
      const uint64_t unit_chunks = (unit.pieces.end - piece) / pieces;
      REQUIRE((unit_chunks == 1 || unit.layer_count == layers));
      // As large as it aims at, or what can't be split, or too little to be shared out better.
      if (layers * bytes * pieces >= UnitPlan::kStreamedUnitBytes)
        REQUIRE((unit.layer_count * bytes * pieces <= 2 * UnitPlan::kStreamedUnitBytes || unit.layer_count == 1));
      layer = (layer + unit.layer_count) % layers;
      if (layer == 0) piece = unit.pieces.end;
    }
    REQUIRE(layer == 0);
    REQUIRE(piece == chunks * pieces);
  }
  CHECK(UnitPlan::ByChunk(1, 10, 8, 64 * kKiB).units() == 10);    // 512 KiB each
  CHECK(UnitPlan::ByChunk(64, 2, 16, 32 * kKiB).units() == 128);  // 32 MiB each: 64 units of a layer
  CHECK(UnitPlan::ByChunk(64, 2, 4, 4 * kKiB).units() == 4);      // 1 MiB each: 2 units of 32 layers
}

TEST_CASE("UnitPlan gives an empty copy one unit") {
  for (const UnitPlan& plan : {UnitPlan(0, 0, 16), UnitPlan(0, 5, 16), UnitPlan(7, 0, 16)}) {
    REQUIRE(plan.units() == 1);
    CHECK(plan.At(0).pieces.end * plan.At(0).layer_count == 0);
  }
  CHECK(UnitPlan(7, 0, 16).LayersAfter(1) == 7);
}

}  // namespace
}  // namespace kvist::cuda
