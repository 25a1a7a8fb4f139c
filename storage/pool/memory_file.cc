#include "storage/pool/memory_file.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "storage/base/status.h"
#include "storage/pool/huge_pages.h"

namespace kvist::pool {

absl::StatusOr<UniqueFd> CreateMemoryFile(const std::string& name, Bytes length, int numa_node) {
  const auto bytes = static_cast<off_t>(AlignUp(length, kHugePage).value);
  if (length > Bytes{} && FreeHugeTlb(numa_node) >= length) {
    UniqueFd huge(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB));
    // Only a mapping takes the pages: one, to see whether they can still be had, and until the pool has its own.
    if (huge && ::ftruncate(huge.get(), bytes) == 0) {
      void* const taken = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, huge.get(), 0);
      if (taken != MAP_FAILED) {
        ::munmap(taken, static_cast<size_t>(bytes));  // the file keeps its reservation
        return huge;
      }
    }
  }
  UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!file) return ErrnoStatus("memfd_create for the pool", errno);
  if (::ftruncate(file.get(), bytes) != 0) return ErrnoStatus("ftruncate of a file of memory for the pool", errno);
  return file;
}

bool MemoryFileHasSmallPages(Bytes length, int numa_node) {
  return FreeHugeTlb(numa_node) < length && TransparentHugePages() && !TransparentHugePagesInFiles();
}

}  // namespace kvist::pool
