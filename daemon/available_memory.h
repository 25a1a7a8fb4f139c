#ifndef KVIST_DAEMON_AVAILABLE_MEMORY_H_
#define KVIST_DAEMON_AVAILABLE_MEMORY_H_

#include <string>

#include "storage/base/units.h"

namespace kvist::daemon {

// Memory that this process could still take without swapping or being killed: MemAvailable of /proc/meminfo, or less when a cgroup
// (v1 or v2, its own or one above) leaves less below its limit; file cache of a cgroup counts as free. 0 when nothing can be read.
// `root` stands before /proc and /sys; for tests.
Bytes AvailableMemory(const std::string& root = "");

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_AVAILABLE_MEMORY_H_
