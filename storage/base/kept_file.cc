#include "storage/base/kept_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist {

absl::Status KeepFile(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return ErrnoStatus(absl::StrCat("can't make ", fresh), errno);
  errno = 0;
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0)
    return ErrnoStatus(absl::StrCat("can't write ", path), errno != 0 ? errno : ENOSPC);
  const UniqueFd directory(::open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fsync(directory.get()) != 0)
    return ErrnoStatus(absl::StrCat("can't sync the directory of ", path), errno);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadKeptFile(const std::string& path, size_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(absl::StrCat("can't open ", path), errno);
  std::string text;
  std::array<char, 64 << 10> part;
  for (;;) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(absl::StrCat("can't read ", path), errno);
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > most)
      return absl::ResourceExhaustedError(absl::StrCat(path, " is longer than ", most, " bytes"));
    text.append(part.data(), static_cast<size_t>(got));
  }
}

}  // namespace kvist
