#include "storage/base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist {

absl::StatusOr<std::string> ReadPrivateFile(std::string_view key, const std::string& path) {
  const std::string name(key);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(name + ": opening " + path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(name + ": " + path, errno);
  if ((info.st_mode & S_IRWXO) != 0)
    return absl::FailedPreconditionError(name + ": other users may read " + path + ": chmod o-rwx " + path);
  std::string text(kPrivateFileMax, '\0');
  const ssize_t read = ::read(file.get(), text.data(), text.size());
  if (read < 0) return ErrnoStatus(name + ": reading " + path, errno);
  text.resize(static_cast<size_t>(read));
  return text;
}

}  // namespace kvist
