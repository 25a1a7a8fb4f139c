#include "storage/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "storage/base/status.h"

namespace kvist {

absl::StatusOr<Mapping> Mapping::Create(int fd, Bytes length, Access access, ByteOffset start) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* at = ::mmap(nullptr, length.value, protection, MAP_SHARED, fd, static_cast<off_t>(start.value));
  if (at == MAP_FAILED) return ErrnoStatus("mmap of a shared memory file", errno);
  ::madvise(at, length.value, MADV_DONTDUMP);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(at);
  mapping.size_ = length;
  return mapping;
}

Mapping::Mapping(Mapping&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, {})) {}

Mapping& Mapping::operator=(Mapping&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_.value);
}

}  // namespace kvist
