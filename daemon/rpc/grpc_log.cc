#include "daemon/rpc/grpc_log.h"

#include <spdlog/spdlog.h>

#include <memory>

#include "daemon/endpoint/credentials.h"

namespace kvist::rpc {
namespace {

spdlog::logger& Log() {
  static const auto& kept = *new std::shared_ptr<spdlog::logger>(spdlog::default_logger());
  return *kept;
}

}  // namespace

void LogGrpc() {
  Log();
  endpoint::HearGrpc([](const char* text) { Log().debug("gRPC: {}", text); });
}

}  // namespace kvist::rpc
