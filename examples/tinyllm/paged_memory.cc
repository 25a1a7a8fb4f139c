#include "examples/tinyllm/paged_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tinyllm {

absl::StatusOr<std::unique_ptr<PagedMemory>> PagedMemory::Create(const ModelConfig& config, uint32_t pages) {
  std::unique_ptr<PagedMemory> memory(new PagedMemory(config.layers, pages, static_cast<size_t>(config.kv_dim())));
  const size_t bytes = memory->bytes();
  memory->fd_ = memfd_create("tinyllm-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->fd_ < 0) return absl::ErrnoToStatus(errno, "memfd_create for the KV memory");
  if (ftruncate(memory->fd_, static_cast<off_t>(bytes)) != 0 ||
      fcntl(memory->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("sizing the KV memory to ", bytes, " bytes"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory->fd_, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("mapping ", bytes, " bytes of KV memory"));
  memory->data_ = static_cast<Bf16*>(data);
  return memory;
}

PagedMemory::~PagedMemory() {
  if (data_ != nullptr) munmap(data_, bytes());
  if (fd_ >= 0) close(fd_);
}

}  // namespace tinyllm
