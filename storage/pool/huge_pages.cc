#include "storage/pool/huge_pages.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvist::pool {
namespace {

constexpr char kTransparent[] = "/sys/kernel/mm/transparent_hugepage/";

uint64_t ReadNumber(const std::string& path) {
  uint64_t number = 0;
  std::ifstream file(path);
  return file >> number ? number : 0;
}

// Of a file of choices the one in brackets; "" when it can't be read.
std::string Chosen(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

}  // namespace

Bytes FreeHugeTlb(int node) {
  const std::string system = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const uint64_t free = ReadNumber(system + "free_hugepages");
  const uint64_t reserved = ReadNumber(system + "resv_hugepages");
  uint64_t usable = free > reserved ? free - reserved : 0;
  if (node >= 0) {
    usable = std::min(usable, ReadNumber(absl::StrCat("/sys/devices/system/node/node", node,
                                                      "/hugepages/hugepages-2048kB/free_hugepages")));
  }
  return kHugePage * usable;
}

bool TransparentHugePages() {
  const std::string chosen = Chosen(absl::StrCat(kTransparent, "enabled"));
  return (chosen == "always" || chosen == "madvise") && !TransparentHugePagesForbidden();
}

bool TransparentHugePagesInFiles() {
  const std::string chosen = Chosen(absl::StrCat(kTransparent, "shmem_enabled"));
  return (chosen == "always" || chosen == "advise" || chosen == "within_size" || chosen == "force") &&
         !TransparentHugePagesForbidden();
}

bool TransparentHugePagesForbidden() { return ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1; }

}  // namespace kvist::pool
