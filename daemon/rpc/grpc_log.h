#ifndef KVIST_DAEMON_RPC_GRPC_LOG_H_
#define KVIST_DAEMON_RPC_GRPC_LOG_H_

namespace kvist::rpc {

// What gRPC says of its own stands in the log at debug from now on: it writes a line for each handshake that fails, and those are anybody's.
// For the whole process, in the logger that is spdlog's default at the first call, which is kept for ever: gRPC's threads speak while the process
// exits, too, when spdlog has let go of its own. Threads: any.
void LogGrpc();

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_GRPC_LOG_H_
