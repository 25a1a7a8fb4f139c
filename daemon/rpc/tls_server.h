#ifndef KVIST_DAEMON_RPC_TLS_SERVER_H_
#define KVIST_DAEMON_RPC_TLS_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/rpc/node_control.h"
#include "daemon/rpc/roles.h"

namespace grpc {
class Service;
}

namespace kvist::rpc {

// Serves over TCP what an AdminServer serves on its socket, to clients with a certificate (daemon/endpoint) and a role (roles.h), and to nobody
// else. A server of its own, so that whatever comes by the network takes no thread from the socket: operators on the machine are always answered.
//
// A connection has 10 s to say who it is, and an hour then; how many there are is bounded, by TcpDoor. Each call asks anew whether its certificate's time is over: who resumes a session
// is verified no more.
//
// Lifecycle: as AdminServer. Threads: Create and destroy on one; SetRoles from any.
class TlsServer {
 public:
  struct Options {
    std::string listen;  // an IP address and a port: "10.0.0.7:9416", "[::]:9416"
    endpoint::TlsFiles files;
    Roles roles;
    NodeControl* node = nullptr;                                // as of AdminServer, and so are those below
    std::vector<std::shared_ptr<grpc::Service>> services = {};  // of its own
    std::string section = "admin";
    int request_bytes_max = 4 << 20;
  };

  // Errors: those of ListenByTcp for `section`.listen, and of CheckTlsFiles.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Create(Options options);
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  // From the next call on, of connections that are there as well. What somebody watches who has lost the role for it ends, with PermissionDenied.
  void SetRoles(Roles roles);

 private:
  struct State;
  explicit TlsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_TLS_SERVER_H_
