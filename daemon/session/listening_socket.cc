#include "daemon/session/listening_socket.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

// Whether something accepts connections there. A socket file whose listener is gone refuses.
bool Answers(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!probe) return false;
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN ||
         errno == EPROTOTYPE;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenAt(const std::string& path, uint32_t mode, const std::string& group) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("session.socket is ", path.size(), " bytes long, the system allows ",
                                                   sizeof address.sun_path - 1, ": ", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus("socket for engines", errno);
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return absl::InvalidArgumentError(absl::StrCat("session.socket: ", path, " exists and is no socket"));
    if (Answers(address))
      return absl::AlreadyExistsError(absl::StrCat("another daemon listens at ", path, ": stop it, or set session.socket"));
    ::unlink(path.c_str());
  }
  // Bound under a mask that lets nobody in; opened by chmod when group and mode are right.
  const mode_t mask = ::umask(0777);
  const int bound = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int bind_error = errno;
  ::umask(mask);
  if (bound != 0) return ErrnoStatus(absl::StrCat("bind of session.socket ", path), bind_error);
  if (!group.empty()) {
    const struct group* entry = ::getgrnam(group.c_str());
    if (entry == nullptr) return absl::InvalidArgumentError(absl::StrCat("session.socket_group: no group '", group, "'"));
    if (::chown(path.c_str(), static_cast<uid_t>(-1), entry->gr_gid) != 0)
      return ErrnoStatus(absl::StrCat("session.socket_group: can't give ", path, " to group ", group), errno);
  }
  if (::chmod(path.c_str(), mode) != 0) return ErrnoStatus(absl::StrCat("session.socket_mode: chmod of ", path), errno);
  if (::listen(fd.get(), 128) != 0) return ErrnoStatus(absl::StrCat("session.socket: listen at ", path), errno);
  return fd;
}

}  // namespace kvist::session
