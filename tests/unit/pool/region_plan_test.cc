#include "storage/pool/region_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "storage/pool/slot_allocator.h"

namespace kvist::pool {
namespace {

TEST_CASE("PlanRegions gives a pool to one node as it is") {
  CHECK(PlanRegions(MiB(100), MiB(64), {-1}) == std::vector<RegionPlan>{{-1, MiB(100)}});
  CHECK(PlanRegions(MiB(100), MiB(64), {3}) == std::vector<RegionPlan>{{-1, MiB(100)}});
}

TEST_CASE("PlanRegions spreads whole slabs, the first nodes having one more") {
  CHECK(PlanRegions(MiB(128), MiB(64), {0, 1}) == std::vector<RegionPlan>{{0, MiB(64)}, {1, MiB(64)}});
  CHECK(PlanRegions(MiB(7), MiB(1), {0, 2, 3}) == std::vector<RegionPlan>{{0, MiB(3)}, {2, MiB(2)}, {3, MiB(2)}});
  CHECK(PlanRegions(KiB(68) * 5, KiB(68), {0, 1}) == std::vector<RegionPlan>{{0, KiB(68) * 3}, {1, KiB(68) * 2}});
  CHECK(PlanRegions(MiB(130), MiB(64), {0, 1}) == std::vector<RegionPlan>{{0, MiB(64)}, {1, MiB(66)}});  // its tail
}

TEST_CASE("PlanRegions leaves nodes out for which there is no slab") {
  CHECK(PlanRegions(MiB(2), MiB(2), {0, 1}) == std::vector<RegionPlan>{{0, MiB(2)}});
  CHECK(PlanRegions(MiB(5), MiB(2), {4, 5, 6}) == std::vector<RegionPlan>{{4, MiB(2)}, {5, MiB(3)}});
}

TEST_CASE("RegionNear is the node's region, or the first one") {
  const std::vector<RegionPlan> regions = PlanRegions(MiB(128), MiB(64), {0, 2});
  CHECK(RegionNear(regions, 0) == 0);
  CHECK(RegionNear(regions, 2) == 1);
  for (const int node : {1, 3, -1}) CHECK(RegionNear(regions, node) == 0);
  CHECK(RegionNear(PlanRegions(MiB(128), MiB(64), {1}), 1) == 0);  // which it doesn't name
  CHECK(RegionNear({}, 0) == 0);
}

TEST_CASE("PlanRegions loses no slab, whatever the pool and the nodes") {
  for (uint64_t slabs = 1; slabs < 20; ++slabs) {
    for (size_t count = 1; count <= 8; ++count) {
      for (const Bytes tail : {Bytes{}, KiB(4), KiB(60)}) {
        INFO(slabs << " slabs on " << count << " nodes");
        std::vector<int> nodes(count);
        std::iota(nodes.begin(), nodes.end(), 0);
        const Bytes pool = KiB(64) * slabs + tail;
        SlotAllocator::Options options;
        options.slab_bytes = KiB(64);
        Bytes all{};
        for (const RegionPlan& region : PlanRegions(pool, KiB(64), nodes)) {
          options.regions.push_back(region.length);
          all += region.length;
        }
        CHECK(all == pool);
        CHECK(SlotAllocator::Create(std::move(options))->capacity() == KiB(64) * slabs);
      }
    }
  }
}

}  // namespace
}  // namespace kvist::pool
