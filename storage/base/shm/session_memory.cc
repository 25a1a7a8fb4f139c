#include "storage/base/shm/session_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

absl::StatusOr<SessionMemory::Created> SessionMemory::Create() {
  Created created;
  created.fd = UniqueFd(::memfd_create("kvist-session", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!created.fd) return ErrnoStatus("memfd_create for a session", errno);
  if (::ftruncate(created.fd.get(), static_cast<off_t>(kSessionBytes.value)) != 0)
    return ErrnoStatus("ftruncate of a session's memory", errno);
  if (::fcntl(created.fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus("sealing a session's memory", errno);
  KVIST_ASSIGN_OR_RETURN(created.memory.mapping_,
                         Mapping::Create(created.fd.get(), kSessionBytes, Mapping::Access::kReadWrite));
  Header* header = created.memory.header();
  header->magic = kMagic;
  header->version = kVersion;
  header->asleep.store(static_cast<uint32_t>(Asleep::kOnDoorbell), std::memory_order_relaxed);
  return created;
}

absl::StatusOr<SessionMemory> SessionMemory::Map(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus("fstat of the session's memory", errno);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || static_cast<uint64_t>(info.st_size) != kSessionBytes.value) {
    return absl::FailedPreconditionError(absl::StrCat("the session's memory has ", info.st_size, " bytes and seals ", seals,
                                                      ", wanted ", kSessionBytes.value, " and ", kSeals,
                                                      ": connector and kvistd differ in version"));
  }
  SessionMemory memory;
  KVIST_ASSIGN_OR_RETURN(memory.mapping_, Mapping::Create(fd, kSessionBytes, Mapping::Access::kReadWrite));
  if (memory.header()->magic != kMagic || memory.header()->version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the session's memory has layout version ", memory.header()->version,
                                                      ", this connector has ", kVersion));
  }
  return memory;
}

}  // namespace kvist::shm
