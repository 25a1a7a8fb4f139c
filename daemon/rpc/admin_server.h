#ifndef KVIST_DAEMON_RPC_ADMIN_SERVER_H_
#define KVIST_DAEMON_RPC_ADMIN_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/rpc/node_control.h"

namespace grpc {
class Service;
}

namespace kvist::rpc {

// Serves gRPC on a unix socket: the admin API of a node (proto/node.proto) and other services, and with them gRPC's own reflection and health
// service. Who may connect is decided by the socket's group and mode alone.
//
// Lifecycle: Create serves when it returns -> the destructor refuses new calls, gives running ones 1 s and then cancels them, waits
//   for their handlers (they wait for the node at most until their deadline; a node that is stopping answers Unavailable), and
//   removes the socket.
// Until the socket has its group and mode it has what the process's umask leaves: that should let nobody else write.
// Threads: Create and destroy on one. Calls come on gRPC's threads.
class AdminServer {
 public:
  struct Options {
    std::string socket;  // path; its directory must exist
    uint32_t mode = 0660;
    std::string group;            // "" leaves the process's own
    NodeControl* node = nullptr;  // borrowed until the destructor has ended; none: without the service Node
    std::vector<std::shared_ptr<grpc::Service>> services = {};  // others
    std::string section = "admin";                              // of the keys that errors name
    // Of a message: a prompt of a million tokens, which most requests are far below. More: more memory for a caller to take.
    int request_bytes_max = 4 << 20;
  };

  // Errors: AlreadyExists  a live daemon has the socket.  InvalidArgument  no such group, path too long.
  //         Others: the directory is missing or closed to us. Each names the key to change.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Create(Options options);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

 private:
  struct State;
  explicit AdminServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_ADMIN_SERVER_H_
