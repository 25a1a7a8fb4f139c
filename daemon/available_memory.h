#ifndef KVIST_DAEMON_AVAILABLE_MEMORY_H_
#define KVIST_DAEMON_AVAILABLE_MEMORY_H_

#include <string>

#include "absl/status/status.h"
#include "storage/base/units.h"

namespace kvist::daemon {

// Memory that this process could still take without swapping or being killed: MemAvailable of /proc/meminfo, or less when a cgroup
// (v1 or v2, its own or one above) leaves less below its limit; file cache of a cgroup counts as free. 0 when nothing can be read.
// `root` stands before /proc and /sys; for tests.
Bytes AvailableMemory(const std::string& root = "");

// Whether the limit of this process's address space leaves room for a pool of so many bytes and 1 GiB for kvistd itself: libraries,
// stacks of threads, the allocator's arenas. Without that room the process would end without a word when gRPC starts its threads.
// (Measured: 430 MiB on 2 cores; more cores, more threads.)
// Errors: ResourceExhausted  names RLIMIT_AS and pool.bytes.
absl::Status CheckAddressSpace(Bytes pool);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_AVAILABLE_MEMORY_H_
