#include "daemon/rpc/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <memory>

namespace kvist::rpc {
namespace {

// gRPC's own threads fail handshakes while the process exits; the log was gone then.
TEST_CASE("LogGrpc needs no default logger when gRPC speaks") {
  LogGrpc();
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(nullptr);
  gpr_log(GPR_ERROR, "a handshake failed");
  spdlog::set_default_logger(before);
  SUCCEED("nothing was touched that is gone");
}

}  // namespace
}  // namespace kvist::rpc
