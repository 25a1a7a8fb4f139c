#ifndef KVIST_DAEMON_RPC_SOCKET_ADDRESS_H_
#define KVIST_DAEMON_RPC_SOCKET_ADDRESS_H_

#include <string>

namespace kvist::rpc {

// gRPC's name of the unix socket at `path`; characters that mean something in a URI are escaped.
std::string SocketAddress(const std::string& path);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_SOCKET_ADDRESS_H_
