#include "daemon/session/peer.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5; not in Debian 12's headers

bool Credentials(int socket, ucred* credentials) {
  socklen_t size = sizeof *credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, credentials, &size) == 0;
}

}  // namespace

uid_t UidOf(int socket) {
  ucred credentials{};
  return Credentials(socket, &credentials) ? credentials.uid : static_cast<uid_t>(-1);
}

absl::StatusOr<Peer> IdentifyPeer(int socket) {
  ucred credentials{};
  if (!Credentials(socket, &credentials)) return ErrnoStatus("SO_PEERCRED of an engine's connection", errno);
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) != 0) {
    // Older kernels: by number. The peer may have ended and its pid be taken by another; then the socket has hung up, too,
    // and the session ends by that.
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0));
    if (pidfd < 0) return ErrnoStatus(absl::StrCat("pidfd_open of engine process ", credentials.pid), errno);
  }
  peer.pidfd = UniqueFd(pidfd);
  return peer;
}

std::string TenantOf(uid_t uid, const std::map<std::string, std::string>& tenants) {
  const auto found = tenants.find(std::to_string(uid));
  // A configured name can't be taken for a uid's own: those have the prefix, which Options::Validate forbids in names.
  return found == tenants.end() ? absl::StrCat("uid:", uid) : found->second;
}

}  // namespace kvist::session
