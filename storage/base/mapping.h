#ifndef KVIST_STORAGE_BASE_MAPPING_H_
#define KVIST_STORAGE_BASE_MAPPING_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "storage/base/units.h"

namespace kvist {

// Owns one shared mapping of a file descriptor; unmaps it. The descriptor may be closed meanwhile. It is left out of core dumps: what
// processes share here are users' secrets (engines' KV, keys of prompts), and gigabytes.
class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  // Maps `length` bytes of `fd` from `start` on, a multiple of a page. Errors: those of mmap.
  static absl::StatusOr<Mapping> Create(int fd, Bytes length, Access access, ByteOffset start = {});

  Mapping() = default;
  Mapping(Mapping&& o) noexcept;
  Mapping& operator=(Mapping&& o) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_{};
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_MAPPING_H_
