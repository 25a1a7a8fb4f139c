#ifndef KVIST_DAEMON_RPC_TCP_LISTENING_H_
#define KVIST_DAEMON_RPC_TCP_LISTENING_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::rpc {

// A listening TCP socket at `address`, an IP address and a port: "10.0.0.7:9416", "[fd00::7]:9416". "0.0.0.0" is every IPv4 address of this machine and
// no other, "[::]" every address, of IPv6 and of IPv4. It doesn't block; nobody shares the port.
//
// Errors, each with `setting` and what can be done: InvalidArgument  no such address.  Unavailable  another process has the port, or this machine
//         hasn't the address, or IPv4 or IPv6 is closed to the process.  PermissionDenied  not ours to take. Others: those of sockets.
absl::StatusOr<UniqueFd> ListenByTcp(const std::string& address, const std::string& setting);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_TCP_LISTENING_H_
