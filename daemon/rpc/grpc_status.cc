#include "daemon/rpc/grpc_status.h"

#include <grpcpp/support/status.h>

#include <string>

namespace kvist::rpc {

grpc::Status ToGrpc(const absl::Status& status) {
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) == grpc::UNAUTHENTICATED,
                "the two enumerations agree to the end");
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

}  // namespace kvist::rpc
