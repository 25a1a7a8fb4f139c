#include "daemon/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvist::daemon {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" is no number
}

// The number behind `name` in lines of "name number".
std::optional<uint64_t> ReadField(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == name && file >> number) return number;
  }
  return std::nullopt;
}

// The files in which one version of cgroups says the same.
struct CgroupFiles {
  const char* hierarchy;  // where it is mounted
  const char* limit;
  const char* usage;
  const char* reclaimable;  // field of memory.stat
};
constexpr CgroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

uint64_t Left(const fs::path& cgroup, const CgroupFiles& files) {
  const std::optional<uint64_t> limit = ReadNumber(cgroup / files.limit);
  if (!limit) return std::numeric_limits<uint64_t>::max();
  const uint64_t usage = ReadNumber(cgroup / files.usage).value_or(0);
  const uint64_t reclaimable = ReadField(cgroup / "memory.stat", files.reclaimable).value_or(0);
  const uint64_t in_use = usage - std::min(usage, reclaimable);
  return *limit - std::min(*limit, in_use);
}

// The least that a cgroup and those above it leave. In a container the path of /proc/self/cgroup may not exist below the mount;
// the mount itself is then the container's own cgroup.
uint64_t LeastLeft(const fs::path& root, const CgroupFiles& files, const std::string& own) {
  const fs::path mount = root / files.hierarchy;
  uint64_t left = std::numeric_limits<uint64_t>::max();
  for (fs::path at = (mount / fs::path(own).relative_path()).lexically_normal();; at = at.parent_path()) {
    left = std::min(left, Left(at, files));
    if (at == mount || !at.has_relative_path()) return left;
  }
}

// The controllers' field of a line of /proc/self/cgroup, "9:cpu,memory:/path", and the path behind it.
uint64_t LeftInCgroups(const fs::path& root) {
  uint64_t left = std::min(Left(root / kVersion1.hierarchy, kVersion1), Left(root / kVersion2.hierarchy, kVersion2));
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = absl::StrCat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string own = line.substr(second + 1);
    if (controllers == ",,") left = std::min(left, LeastLeft(root, kVersion2, own));
    if (absl::StrContains(controllers, ",memory,")) left = std::min(left, LeastLeft(root, kVersion1, own));
  }
  return left;
}

}  // namespace

Bytes AvailableMemory(const std::string& root) {
  const fs::path at = absl::StrCat(root, "/");
  const uint64_t machine = KiB(ReadField(at / "proc/meminfo", "MemAvailable:").value_or(0)).value;
  return {std::min(machine, LeftInCgroups(at))};
}

}  // namespace kvist::daemon
