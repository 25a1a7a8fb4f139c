#ifndef KVIST_DAEMON_RPC_EACH_CALL_H_
#define KVIST_DAEMON_RPC_EACH_CALL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace kvist::rpc {

// For a server's builder: `begins` is told of each call of the server, by what gRPC calls the client (TcpPeer), when it has passed the RoleCheck and
// before its service hears of it. Called on gRPC's threads, several at once.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> EachCall(
    std::function<void(const std::string& peer)> begins);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_EACH_CALL_H_
