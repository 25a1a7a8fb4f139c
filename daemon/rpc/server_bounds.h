#ifndef KVIST_DAEMON_RPC_SERVER_BOUNDS_H_
#define KVIST_DAEMON_RPC_SERVER_BOUNDS_H_

namespace grpc {
class ServerBuilder;
}

namespace kvist::rpc {

// What callers may have a server of ours take.
struct ServerBounds {
  const char* name;
  int request_bytes_max;  // of a message
  int threads_max;        // calls at a time, gRPC's own pollers included
};
// Also that messages come as they are: gRPC bounds the length of a compressed one before it inflates it, a thousand times if it was made for that.
void BoundServer(const ServerBounds& bounds, grpc::ServerBuilder* builder);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_SERVER_BOUNDS_H_
