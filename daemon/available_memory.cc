#include "daemon/available_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "storage/base/memory_cgroups.h"

namespace kvist::daemon {
namespace {

// MemAvailable, in a line of "name number kB".
Bytes MachineAvailable(const std::filesystem::path& meminfo) {
  std::ifstream file(meminfo);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == "MemAvailable:" && file >> number) return KiB(number);
  }
  return Bytes{};
}

}  // namespace

Bytes AvailableMemory(const std::string& root) {
  const std::filesystem::path at = absl::StrCat(root, "/");
  Bytes available = MachineAvailable(at / "proc/meminfo");
  for (const MemoryCgroup& cgroup : MemoryCgroups(at)) {
    if (!cgroup.limit) continue;
    const uint64_t in_use = cgroup.usage - std::min(cgroup.usage, cgroup.reclaimable);
    available = std::min(available, Bytes{*cgroup.limit - std::min(*cgroup.limit, in_use)});
  }
  return available;
}

absl::Status CheckAddressSpace(Bytes pool) {
  constexpr Bytes kBeside = GiB(1);
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || pool + kBeside <= Bytes{limit.rlim_cur}) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("RLIMIT_AS (ulimit -v; systemd: LimitAS) is ", limit.rlim_cur,
                                                   " bytes, wanted are ", (pool + kBeside).value, " for a pool of ",
                                                   pool.value, " and kvistd itself: lower pool.bytes or raise that limit"));
}

}  // namespace kvist::daemon
