#include "daemon/socket_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/status.h"

namespace kvist::daemon {

absl::Status CheckSocketDir(const std::string& dir) {
  struct stat found {};
  if (dir != DefaultRuntimeDir() || !absl::StartsWith(dir, "/tmp/")) return absl::OkStatus();
  if (lstat(dir.c_str(), &found) != 0 || IsPrivateDir(dir)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(dir,
                   " is there, but is not a directory of this user with mode 0700, so sockets in it would not "
                   "be safe: remove it, or set session.socket and admin.socket"));
}

absl::Status MakeSocketDir(absl::string_view key, const std::string& socket) {
  const std::string dir = socket.substr(0, socket.rfind('/'));
  if (dir.empty()) return absl::OkStatus();
  const mode_t mode = geteuid() == 0 ? 0755 : 0700;
  if (mkdir(dir.c_str(), mode) == 0) {
    if (chmod(dir.c_str(), mode) != 0)
      return ErrnoStatus(absl::StrCat(key, ": can't set the mode of ", dir), errno);  // whatever the umask said
  } else if (errno != EEXIST) {
    return ErrnoStatus(absl::StrCat(key, ": can't make ", dir, " for the socket ", socket), errno);
  }
  return CheckSocketDir(dir);
}

}  // namespace kvist::daemon
