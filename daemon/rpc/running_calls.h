#ifndef KVIST_DAEMON_RPC_RUNNING_CALLS_H_
#define KVIST_DAEMON_RPC_RUNNING_CALLS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace kvist::rpc {

// The calls of one server, as they begin, and those that stream an answer until they end: what a client watches may last for hours, and its role be
// taken away meanwhile.
//
// Lifecycle: made before the server is, destroyed after it. Threads: any. `begins` and `may` are called on gRPC's threads, several at once.
class RunningCalls {
 public:
  struct Options {
    // A call has passed the RoleCheck, and its service hears of it next; by what gRPC calls the client (PeerNamed).
    std::function<void(const std::string& peer)> begins;
    // Whether the client of these names may call `path` now.
    std::function<bool(const std::vector<std::string>& names, absl::string_view path)> may;
  };
  explicit RunningCalls(Options options);
  ~RunningCalls();
  RunningCalls(const RunningCalls&) = delete;
  RunningCalls& operator=(const RunningCalls&) = delete;

  // For the server's builder.
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> Watch();

  // Asks `may` again for each that streams. One that may not go on is cancelled: its client is told PermissionDenied, its service that it is cancelled.
  void AskAgain();

 private:
  class State;
  class Call;
  class Factory;
  std::unique_ptr<State> state_;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_RUNNING_CALLS_H_
