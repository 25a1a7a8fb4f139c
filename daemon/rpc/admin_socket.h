#ifndef KVIST_DAEMON_RPC_ADMIN_SOCKET_H_
#define KVIST_DAEMON_RPC_ADMIN_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace kvist::rpc {

// gRPC's name of the unix socket at `path`; characters that mean something in a URI are escaped.
std::string SocketAddress(const std::string& path);

// Makes `path` free for a new socket: one that a dead daemon left behind is removed. gRPC itself removes any socket, a live one, too.
// Errors: AlreadyExists  a live daemon answers there, or it is no socket.  Others: its directory is missing or closed to us. Each names
// the key `section`.socket.
absl::Status FreeSocketPath(const std::string& path, const std::string& section = "admin");

// Gives a fresh socket its group ("" leaves it) and then its mode.
// Errors: InvalidArgument  no such group.  PermissionDenied  it may not be given to that group.
absl::Status OpenSocketTo(const std::string& path, const std::string& group, uint32_t mode,
                          const std::string& section = "admin");

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_ADMIN_SOCKET_H_
