#ifndef KVIST_STORAGE_POOL_REGION_PLAN_H_
#define KVIST_STORAGE_POOL_REGION_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "storage/base/units.h"

namespace kvist::pool {

// How a pool is spread over NUMA nodes (UsableNumaNodes): whole slabs, to each node as many as to any other or one more, so that no slab is
// lost at a border. What is left below a slab lies in the last region. A node for which there is no slab has no region.
struct RegionPlan {
  int numa_node = -1;  // -1: there is one node only, and no need to name it
  Bytes length{};
  bool operator==(const RegionPlan&) const = default;
};
// `nodes` isn't empty, and slab_bytes positive and at most pool_bytes; then there is a region at least, and their lengths are pool_bytes in all.
std::vector<RegionPlan> PlanRegions(Bytes pool_bytes, Bytes slab_bytes, const std::vector<int>& nodes);

// Which of them is for what lies on that node; the first one where none is its node's, or that is unknown (-1).
uint32_t RegionNear(std::span<const RegionPlan> regions, int numa_node);

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_REGION_PLAN_H_
