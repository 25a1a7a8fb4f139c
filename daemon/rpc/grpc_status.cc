#include "daemon/rpc/grpc_status.h"

#include <grpcpp/support/status.h>

#include <string>

namespace kvist::rpc {

// A message is a header, three bytes for each that isn't plain ASCII, and clients take 8 KiB of headers: a configuration can have more
// errors than that.
constexpr size_t kMessageMax = 2048;

grpc::Status ToGrpc(const absl::Status& status) {
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) == grpc::UNAUTHENTICATED,
                "the two enumerations agree to the end");
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message().substr(0, kMessageMax))};
}

}  // namespace kvist::rpc
