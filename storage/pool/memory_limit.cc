#include "storage/pool/memory_limit.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvist::pool {
namespace {

// Where this process stands in the cgroup v2 tree; "" when it isn't in one.
std::filesystem::path OwnCgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

MemoryLimit FindMemoryLimit() {
  MemoryLimit limit{
      .bytes = Bytes{static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES))} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
      .source = "this machine's memory"};
  // A container sees its own cgroup as the root; elsewhere every ancestor's limit holds, too.
  const std::filesystem::path root = "/sys/fs/cgroup";
  for (std::filesystem::path at = root / OwnCgroup();; at = at.parent_path()) {
    const std::filesystem::path path = at / "memory.max";
    std::ifstream file(path);
    uint64_t bytes = 0;
    if (file >> bytes && Bytes{bytes} < limit.bytes)
      limit = {.bytes = {bytes}, .source = path.string()};  // "max" is no number
    if (at == root || at == at.parent_path()) break;
  }
  return limit;
}

}  // namespace kvist::pool
