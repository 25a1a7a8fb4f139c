#ifndef KVIST_STORAGE_POOL_MEMORY_LIMIT_H_
#define KVIST_STORAGE_POOL_MEMORY_LIMIT_H_

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "storage/base/units.h"

namespace kvist::pool {

// The most memory that this process can ever have: a pool that is larger would be reserved without complaint and the process be
// killed when it is touched.
struct MemoryLimit {
  Bytes bytes{};
  std::string source;  // what sets it, for a message: "this machine's memory" or the file of a cgroup's limit
};

// The smallest of the machine's memory and the cgroup limits, v1 or v2, that hold for this process. `root`: of MemoryCgroups.
MemoryLimit FindMemoryLimit(const std::filesystem::path& root = "/");

// Whether so much may be had, all regions of a pool together. Errors: ResourceExhausted  names pool.bytes and the limit.
absl::Status CheckMemoryLimit(Bytes pool, const MemoryLimit& limit = FindMemoryLimit());

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_MEMORY_LIMIT_H_
