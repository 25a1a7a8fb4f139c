#ifndef KVIST_DAEMON_RPC_GRPC_STATUS_H_
#define KVIST_DAEMON_RPC_GRPC_STATUS_H_

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace kvist::rpc {

// The one place where our errors become gRPC's. The codes have the same meaning and numbers on both sides.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_GRPC_STATUS_H_
