#include "daemon/session/listening_socket.h"

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

constexpr char kKey[] = "session.socket";
// Who connects and finds no place here waits or is told to come again; the kernel's own bound (net.core.somaxconn) may be lower.
constexpr int kBacklog = 4096;

}  // namespace

absl::StatusOr<ListeningSocket> ListenAt(const std::string& path, uint32_t mode, const std::string& group) {
  KVIST_ASSIGN_OR_RETURN(const UniqueFd alone, FreeSocketPath(path, kKey, SOCK_SEQPACKET));
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus("socket for engines", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // By the process's umask, which lets nobody else in; opened by chmod when group and mode are right.
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return ErrnoStatus(absl::StrCat("bind of ", kKey, " ", path), errno);
  const SocketFile file = SocketFileAt(path);
  absl::Status status = OpenSocketTo(path, group, mode, kKey);
  if (status.ok() && ::listen(fd.get(), kBacklog) != 0)
    status = ErrnoStatus(absl::StrCat(kKey, ": listen at ", path), errno);
  if (status.ok()) return ListeningSocket{std::move(fd), file};
  if (SocketFileAt(path) == file) ::unlink(path.c_str());
  return status;
}

}  // namespace kvist::session
