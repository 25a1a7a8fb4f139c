#ifndef KVIST_STORAGE_BASE_MEMORY_CGROUPS_H_
#define KVIST_STORAGE_BASE_MEMORY_CGROUPS_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace kvist {

// A cgroup that limits this process's memory, of either version: where it says so.
struct MemoryCgroup {
  std::filesystem::path limit_file;  // for messages
  std::optional<uint64_t> limit;     // bytes; nothing when it has none, and then nothing below either
  uint64_t usage = 0;                // bytes
  uint64_t reclaimable = 0;          // bytes of them: file cache that it would give up first
};

// Every memory cgroup, v1 and v2, that holds for this process: its own and those above. In a container the path of /proc/self/cgroup may
// not exist below the mount; the mount itself is then the container's own cgroup, and among them.
// `root` ends with "/" and stands before proc and sys; for tests.
std::vector<MemoryCgroup> MemoryCgroups(const std::filesystem::path& root = "/");

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_MEMORY_CGROUPS_H_
