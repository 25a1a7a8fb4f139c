#include "daemon/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/writable_dir.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

// mkdir -p with mode 0700. Returns whether the last one is new.
absl::StatusOr<bool> MakeDirs(const std::string& path) {
  bool is_new = false;
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    const bool made = mkdir(part.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) return ErrnoStatus(absl::StrCat("daemon.state_dir: can't make ", part), errno);
    is_new = made || (is_new && part.back() == '/');  // "a/" is "a", which is there by then
    if (end == std::string::npos) return is_new;
  }
}

// Whether `file` is still the one that `lock` is open on, and not one that GiveUp removed.
bool IsThere(const std::string& file, int lock) {
  struct stat there {
  }, held{};
  return lstat(file.c_str(), &there) == 0 && fstat(lock, &held) == 0 && there.st_dev == held.st_dev &&
         there.st_ino == held.st_ino;
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

absl::Status CheckStateDir(const std::string& path) {
  const std::string why = WhyNoDirectory(path);
  if (!why.empty()) return absl::FailedPreconditionError(absl::StrCat("daemon.state_dir: ", path, ": ", why));
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? CheckOwner(path) : absl::OkStatus();
}

absl::StatusOr<StateDir> StateDir::Lock(const std::string& path) {
  KVIST_ASSIGN_OR_RETURN(const bool is_new, MakeDirs(path));
  KVIST_RETURN_IF_ERROR(CheckOwner(path));
  const std::string file = absl::StrCat(path, "/lock");
  UniqueFd lock(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return ErrnoStatus(absl::StrCat("can't open ", file), errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(absl::StrCat("can't lock ", file), errno);
    return absl::FailedPreconditionError(absl::StrCat("the state directory ", path, " is in use by ", Owner(lock.get()),
                                                      ": stop it, or give this daemon another daemon.state_dir"));
  }
  if (!IsThere(file, lock.get())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state directory ", path, " has just been removed by a daemon that could not start: start again"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoStatus(absl::StrCat("can't write ", file), errno);
  }
  return StateDir(path, is_new, std::move(lock));
}

void StateDir::GiveUp() {
  if (!std::exchange(is_new_, false)) return;
  // Away under another name first: what a daemon that starts meanwhile makes in its place isn't ours.
  std::string away = absl::StrCat(path_.substr(0, path_.find_last_not_of('/') + 1), ".gone.XXXXXX");
  if (mkdtemp(away.data()) == nullptr) return;  // then it stays, and harms nobody
  std::error_code ignored;
  std::filesystem::rename(path_, away, ignored);
  if (!ignored) std::filesystem::remove_all(away, ignored);
}

}  // namespace kvist::daemon
