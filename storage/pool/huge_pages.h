#ifndef KVIST_STORAGE_POOL_HUGE_PAGES_H_
#define KVIST_STORAGE_POOL_HUGE_PAGES_H_

#include "storage/base/units.h"

// What the system says of huge pages just now.
namespace kvist::pool {

inline constexpr Bytes kHugePage = MiB(2);

// Free 2 MiB hugetlb pages that nobody has reserved; on one node when it is given (reservations are not counted by node).
Bytes FreeHugeTlb(int node);

// Whether transparent huge pages can be had by asking: for memory of one process, and for a file of memory. Debian gives the first only.
bool TransparentHugePages();
bool TransparentHugePagesInFiles();
// Whether whoever started this process has forbidden it all transparent ones, whatever the system gives to others.
bool TransparentHugePagesForbidden();

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_HUGE_PAGES_H_
