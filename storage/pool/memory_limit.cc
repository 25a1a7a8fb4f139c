#include "storage/pool/memory_limit.h"

#include <unistd.h>

#include <cstdint>

#include "storage/base/memory_cgroups.h"

namespace kvist::pool {

MemoryLimit FindMemoryLimit(const std::filesystem::path& root) {
  MemoryLimit limit{
      .bytes = Bytes{static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES))} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
      .source = "this machine's memory"};
  for (const MemoryCgroup& cgroup : MemoryCgroups(root)) {
    if (cgroup.limit && Bytes{*cgroup.limit} < limit.bytes)
      limit = {.bytes = {*cgroup.limit}, .source = cgroup.limit_file.string()};
  }
  return limit;
}

}  // namespace kvist::pool
