#include "storage/base/socket_path.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// The lock of that directory; nothing when it can't be had in time, or the directory can't be read.
UniqueFd Lock(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fd;
  for (const auto until = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < until;) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return {};
}

absl::Status RemoveDead(const std::string& path, const sockaddr_un& address, const std::string& key, int type) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(absl::StrCat(key, ": ", path), errno);
  if (!S_ISSOCK(found.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(key, ": ", path, " is there and is no socket: remove it, or name another path"));
  }
  const UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoStatus(absl::StrCat(key, ": can't make a socket"), errno);
  // One of ours that is closed to ourselves, too, is from between its bind and OpenSocketTo, which its owner may not have survived.
  const mode_t mode = found.st_mode & 07777;
  const bool closed = found.st_uid == ::geteuid() && (mode & S_IWUSR) == 0 && ::chmod(path.c_str(), mode | S_IWUSR) == 0;
  // Only "refused" says that nobody is behind it: a full backlog, another kind of socket, and one that we may not use are signs of life.
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno != ECONNREFUSED) {
    const std::string why = errno == EACCES ? " (this user may not connect to it)" : "";
    if (closed) ::chmod(path.c_str(), mode);
    return absl::AlreadyExistsError(
        absl::StrCat(key, ": another process answers at ", path, why, ": stop it, or give this one another path"));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(absl::StrCat(key, ": can't remove the stale socket ", path), errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> FreeSocketPath(const std::string& path, const std::string& key, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", path, " has ", path.size(), " bytes; allowed: 1 to ", sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const std::string directory = DirectoryOf(path);
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    return ErrnoStatus(absl::StrCat(key, ": can't make a socket in ", directory), errno);
  UniqueFd lock = Lock(directory);
  KVIST_RETURN_IF_ERROR(RemoveDead(path, address, key, type));
  return lock;
}

absl::Status OpenSocketTo(const std::string& path, const std::string& group, uint32_t mode, const std::string& key) {
  if (!group.empty()) {
    const struct group* entry = ::getgrnam(group.c_str());
    if (entry == nullptr) return absl::InvalidArgumentError(absl::StrCat(key, "_group: this machine has no group ", group));
    if (::chown(path.c_str(), static_cast<uid_t>(-1), entry->gr_gid) != 0)
      return ErrnoStatus(absl::StrCat(key, "_group: can't give ", path, " to group ", group), errno);
  }
  if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0)
    return ErrnoStatus(absl::StrCat(key, "_mode: can't set the mode of ", path), errno);
  return absl::OkStatus();
}

SocketFile SocketFileAt(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return {};
  return {found.st_dev, found.st_ino};
}

void RemoveSocketFile(const std::string& path, SocketFile file) {
  const UniqueFd lock = Lock(DirectoryOf(path));
  if (file != SocketFile{} && SocketFileAt(path) == file) ::unlink(path.c_str());
}

}  // namespace kvist
