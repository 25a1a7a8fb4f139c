#ifndef KVIST_STORAGE_POOL_MEMORY_FILE_H_
#define KVIST_STORAGE_POOL_MEMORY_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvist::pool {

// Files of memory (memfd): what lies in one outlives this process for as long as anybody has a descriptor of it.

// A new one of that length, zero: of hugetlb pages where enough are free on the node (-1: anywhere), else of those that the system gives.
// Nothing of it is in memory before it is used.
// Errors: those of memfd_create and ftruncate.
absl::StatusOr<UniqueFd> CreateMemoryFile(const std::string& name, Bytes length, int numa_node = -1);

// Whether such a file would have smaller pages than memory that ends with the process (PinnedRegion), which costs copies up to a sixth
// of their speed (README.md, "Worth knowing").
bool MemoryFileHasSmallPages(Bytes length, int numa_node = -1);

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_MEMORY_FILE_H_
