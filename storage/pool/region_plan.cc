#include "storage/pool/region_plan.h"

#include <algorithm>
#include <cstdint>

#include "storage/base/check.h"

namespace kvist::pool {

std::vector<RegionPlan> PlanRegions(Bytes pool_bytes, Bytes slab_bytes, const std::vector<int>& nodes) {
  KVIST_CHECK(!nodes.empty() && slab_bytes > Bytes{} && slab_bytes <= pool_bytes);
  const uint64_t slabs = pool_bytes / slab_bytes;
  std::vector<RegionPlan> regions;
  for (uint64_t i = 0; i < nodes.size(); ++i) {
    const uint64_t of_node = slabs / nodes.size() + (i < slabs % nodes.size() ? 1 : 0);
    if (of_node > 0) regions.push_back({nodes.size() > 1 ? nodes[i] : -1, slab_bytes * of_node});
  }
  regions.back().length = regions.back().length + (pool_bytes - slab_bytes * slabs);
  return regions;
}

uint32_t RegionNear(std::span<const RegionPlan> regions, int numa_node) {
  const auto found = std::ranges::find(regions, numa_node, &RegionPlan::numa_node);
  return found == regions.end() ? 0 : static_cast<uint32_t>(found - regions.begin());
}

}  // namespace kvist::pool
