#include "daemon/rpc/grpc_log.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <memory>
#include <sstream>
#include <utility>

namespace kvist::rpc {
namespace {

// gRPC's own threads fail handshakes while the process exits; the default logger was gone then. A program of its own: the first logger is kept.
TEST_CASE("LogGrpc's logger is there when spdlog has let go of it") {
  static std::ostringstream text;
  auto first = std::make_shared<spdlog::logger>("first", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  first->set_pattern("%l %v");
  first->set_level(spdlog::level::debug);
  spdlog::set_default_logger(std::move(first));
  grpc_init();  // it says nothing before
  LogGrpc();
  spdlog::set_default_logger(nullptr);
  gpr_log(GPR_ERROR, "a handshake failed");
  CHECK(text.str() == "debug gRPC: a handshake failed\n");
  grpc_shutdown_blocking();
}

}  // namespace
}  // namespace kvist::rpc
