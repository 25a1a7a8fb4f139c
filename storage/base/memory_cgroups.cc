#include "storage/base/memory_cgroups.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/base/unique_fd.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> ReadNumber(const fs::path& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[32];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text) : -1;
  uint64_t number = 0;
  const bool is_number = length > 0 && absl::SimpleAtoi(absl::string_view(text, static_cast<size_t>(length)), &number);
  return is_number ? std::optional(number) : std::nullopt;  // "max" is none
}

// The number behind `name` in lines of "name number".
uint64_t ReadField(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == name && file >> number) return number;
  }
  return 0;
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

constexpr uint64_t kNone = uint64_t{1} << 62;  // v1 knows no "max", but numbers that no memory reaches

MemoryCgroup Read(const fs::path& cgroup, const CgroupFiles& files) {
  MemoryCgroup found;
  found.limit_file = cgroup / files.limit;
  found.limit = ReadNumber(found.limit_file);
  if (found.limit.value_or(kNone) >= kNone) {
    found.limit.reset();
    return found;
  }
  found.usage = ReadNumber(cgroup / files.usage).value_or(0);
  found.reclaimable = ReadField(cgroup / "memory.stat", files.reclaimable);
  return found;
}

// Those from `own` up to the mount.
void AddAll(const fs::path& root, const CgroupFiles& files, const std::string& own, std::vector<MemoryCgroup>* out) {
  const fs::path mount = root / files.hierarchy;
  for (fs::path at = (mount / fs::path(own).relative_path()).lexically_normal();; at = at.parent_path()) {
    out->push_back(Read(at, files));
    if (at == mount || !at.has_relative_path()) return;
  }
}

}  // namespace

std::vector<MemoryCgroup> MemoryCgroups(const fs::path& root) {
  std::vector<MemoryCgroup> all{Read(root / kVersion1.hierarchy, kVersion1), Read(root / kVersion2.hierarchy, kVersion2)};
  // The controllers' field of a line of /proc/self/cgroup, "9:cpu,memory:/path", and the path behind it.
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = absl::StrCat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string own = line.substr(second + 1);
    if (controllers == ",,") AddAll(root, kVersion2, own, &all);
    if (absl::StrContains(controllers, ",memory,")) AddAll(root, kVersion1, own, &all);
  }
  return all;
}

}  // namespace kvist
