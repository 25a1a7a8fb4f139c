#include "storage/pool/memory_limit.h"

#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
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

absl::Status CheckMemoryLimit(Bytes pool, const MemoryLimit& limit) {
  if (pool <= limit.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the pool needs ", pool.value, " bytes, which ", limit.source, " (",
                                                   limit.bytes.value,
                                                   " bytes) doesn't allow: lower pool.bytes or raise that limit"));
}

}  // namespace kvist::pool
