#include "daemon/available_memory.h"

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

}  // namespace kvist::daemon
