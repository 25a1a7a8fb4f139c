#include "cuda/region_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

absl::Status Shrunk(uint64_t end) {
  return absl::OutOfRangeError(
      absl::StrCat("the engine's memory file ends before byte ", end, ": it was truncated after registration"));
}

template <auto transfer>
absl::Status TransferAll(const char* name, int fd, ByteOffset at, std::span<iovec> pieces) {
  while (!pieces.empty()) {
    const ssize_t count = transfer(fd, pieces.data(), static_cast<int>(pieces.size()), static_cast<off_t>(at.value));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(name, errno);
    if (count == 0) return Shrunk(at.value + 1);
    at.value += static_cast<uint64_t>(count);
    pieces = AfterTransfer(pieces, static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace

std::span<iovec> AfterTransfer(std::span<iovec> pieces, size_t count) {
  while (!pieces.empty() && count >= pieces.front().iov_len) {
    count -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (count > 0) {
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + count;
    pieces.front().iov_len -= count;
  }
  return pieces;
}

absl::Status ReadRegion(int fd, ByteOffset at, std::span<iovec> pieces) {
  return TransferAll<::preadv>("preadv from an engine's memory file", fd, at, pieces);
}

absl::Status WriteRegion(int fd, ByteOffset at, std::span<iovec> pieces) {
  return TransferAll<::pwritev>("pwritev to an engine's memory file", fd, at, pieces);
}

absl::Status RequireWritable(int fd, Bytes length) {
  if ((::fcntl(fd, F_GETFL) & O_APPEND) != 0) {
    return absl::FailedPreconditionError(
        "the engine's memory file was set to append (O_APPEND) after registration, so nothing can be loaded into it");
  }
  struct stat file;
  if (::fstat(fd, &file) != 0) return ErrnoStatus("fstat of an engine's memory file", errno);
  if (static_cast<uint64_t>(file.st_size) < length.value) return Shrunk(length.value);
  return absl::OkStatus();
}

}  // namespace kvist::cuda
