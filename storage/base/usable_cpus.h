#ifndef KVIST_STORAGE_BASE_USABLE_CPUS_H_
#define KVIST_STORAGE_BASE_USABLE_CPUS_H_

#include <string>
#include <vector>

namespace kvist {

// The CPUs that a thread of this process may be pinned to, ascending: those of its cpuset, whatever affinity it has now.
std::vector<int> UsableCpus();

// "0-3, 8": numbers, ascending, as people write them.
std::string PrintRanges(const std::vector<int>& numbers);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_USABLE_CPUS_H_
