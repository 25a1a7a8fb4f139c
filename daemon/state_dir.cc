#include "daemon/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

// mkdir -p with mode 0700.
absl::Status MakeDirs(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(absl::StrCat("daemon.state_dir: can't make ", part), errno);
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

// Whoever can write here can put another lock file in the place of ours.
absl::Status CheckOwner(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return ErrnoStatus(absl::StrCat("daemon.state_dir: ", path), errno);
  if (found.st_uid != geteuid() || (found.st_mode & 0022) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("daemon.state_dir: ", path, " belongs to uid ", found.st_uid,
                                                      " or can be written by others; wanted: a directory that only uid ",
                                                      geteuid(), " can write to (mode 0700 is best)"));
  }
  return absl::OkStatus();
}

// The pid in the lock file, for a message; "a process that is just starting" between its lock and its pid.
std::string Owner(int lock) {
  char text[32];
  const ssize_t length = pread(lock, text, sizeof text, 0);
  uint32_t pid = 0;
  if (length <= 0 || !absl::SimpleAtoi(absl::string_view(text, static_cast<size_t>(length)), &pid)) {
    return "a process that is just starting";
  }
  return absl::StrCat("the process with pid ", pid);
}

}  // namespace

absl::StatusOr<StateDir> StateDir::Lock(const std::string& path) {
  KVIST_RETURN_IF_ERROR(MakeDirs(path));
  KVIST_RETURN_IF_ERROR(CheckOwner(path));
  const std::string file = absl::StrCat(path, "/lock");
  UniqueFd lock(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return ErrnoStatus(absl::StrCat("can't open ", file), errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(absl::StrCat("can't lock ", file), errno);
    return absl::FailedPreconditionError(absl::StrCat("the state directory ", path, " is in use by ", Owner(lock.get()),
                                                      ": stop it, or give this daemon another daemon.state_dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoStatus(absl::StrCat("can't write ", file), errno);
  }
  return StateDir(path, std::move(lock));
}

}  // namespace kvist::daemon
