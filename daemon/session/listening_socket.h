#ifndef KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_
#define KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// A listening SOCK_SEQPACKET socket at `path` with that mode and group. One that a dead daemon has left is replaced.
// Errors: AlreadyExists  a live one answers there.  InvalidArgument  path too long, no such group.  Others: of bind, chmod, chown.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path, uint32_t mode, const std::string& group);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LISTENING_SOCKET_H_
