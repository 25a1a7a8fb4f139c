#ifndef KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_
#define KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/socket_path.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

struct ListeningSocket {
  UniqueFd fd;
  SocketFile file;  // for RemoveSocketFile
};

// A listening SOCK_SEQPACKET socket at `path` with that mode and group. One that a dead daemon has left is replaced; when this fails nothing
// is left. Errors: those of FreeSocketPath and OpenSocketTo; of bind, listen.
absl::StatusOr<ListeningSocket> ListenAt(const std::string& path, uint32_t mode, const std::string& group);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_
