#ifndef KVIST_STORAGE_POOL_MEMORY_LIMIT_H_
#define KVIST_STORAGE_POOL_MEMORY_LIMIT_H_

#include <string>

#include "storage/base/units.h"

namespace kvist::pool {

// The most memory that this process can ever have: a pool that is larger would be reserved without complaint and the process be
// killed when it is touched.
struct MemoryLimit {
  Bytes bytes{};
  std::string source;  // what sets it, for a message: "this machine's memory" or the path of a cgroup's memory.max
};

// The smaller of the machine's memory and the cgroup v2 limits that hold for this process.
MemoryLimit FindMemoryLimit();

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_MEMORY_LIMIT_H_
