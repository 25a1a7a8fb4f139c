#include "daemon/rpc/admin_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/rpc/node_service.h"
#include "daemon/rpc/server_bounds.h"
#include "daemon/rpc/socket_address.h"
#include "storage/base/check.h"
#include "storage/base/socket_path.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

// Calls at a time, gRPC's own pollers included; a few operators and a scraper, eight watchers of jobs of each of two services, and eight of chunks.
constexpr int kThreadsMax = 32;
constexpr std::chrono::seconds kGrace(1);

}  // namespace

struct AdminServer::State {
  std::string socket;
  SocketFile file;
  std::unique_ptr<grpc::Service> node;
  std::vector<std::shared_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
};

AdminServer::AdminServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Create(Options options) {
  KVIST_CHECK(options.node != nullptr || !options.services.empty());
  const std::string key = options.section + ".socket";
  KVIST_ASSIGN_OR_RETURN(const UniqueFd alone, FreeSocketPath(options.socket, key, SOCK_STREAM));
  // For all servers of this process.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  auto state = std::make_unique<State>();
  state->socket = options.socket;
  if (options.node != nullptr) state->node = MakeNodeService(options.node);
  state->services = std::move(options.services);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(SocketAddress(options.socket), grpc::InsecureServerCredentials());
  if (state->node != nullptr) builder.RegisterService(state->node.get());
  for (const auto& service : state->services) builder.RegisterService(service.get());
  BoundServer({.name = "admin", .request_bytes_max = options.request_bytes_max, .threads_max = kThreadsMax}, &builder);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr)
    return absl::UnavailableError(absl::StrCat(options.section, ".socket: gRPC can't listen at ", options.socket));
  std::unique_ptr<AdminServer> server(new AdminServer(std::move(state)));
  server->state_->file = SocketFileAt(options.socket);
  KVIST_RETURN_IF_ERROR(OpenSocketTo(options.socket, options.group, options.mode, key));
  return server;
}

AdminServer::~AdminServer() {
  state_->server->Shutdown(std::chrono::system_clock::now() + kGrace);
  state_->server->Wait();
  state_->server.reset();  // removes the socket, too; not in every version of gRPC
  RemoveSocketFile(state_->socket, state_->file);
}

}  // namespace kvist::rpc
