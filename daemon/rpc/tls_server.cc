#include "daemon/rpc/tls_server.h"

#include <grpc/impl/codegen/grpc_types.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/endpoint/credentials.h"
#include "daemon/rpc/grpc_log.h"
#include "daemon/rpc/node_service.h"
#include "daemon/rpc/role_check.h"
#include "daemon/rpc/running_calls.h"
#include "daemon/rpc/server_bounds.h"
#include "daemon/rpc/tcp_door.h"
#include "daemon/rpc/tcp_listening.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

constexpr int kTlsThreadsMax = 32;  // as on the socket
constexpr std::chrono::seconds kTlsGrace(1);
constexpr int kHandshakeMillis = 10'000;
// gRPC has ended whoever hasn't finished its handshake by then.
constexpr int kConnectionMillis = 3'600'000;
// More than any call lasts but the watching of chunks, which goes on from where it was.
constexpr int kLastCallMillis = 660'000;
constexpr int kCallsOfConnection = 64;    // at a time; whoever asks more waits, and not in our memory
constexpr int kAskSilentMillis = 60'000;  // whether a client is still there that says nothing

}  // namespace

struct TlsServer::State {
  explicit State(Roles roles) : check(std::move(roles)) {}
  RoleCheck check;
  RunningCalls calls{{.begins =
                          [this](const std::string& peer) {
                            if (const std::optional<TcpPeer> known = PeerNamed(peer)) door->Known(*known);
                          },
                      .may = [this](const auto& names, absl::string_view path) { return check.May(names, path); }}};
  std::unique_ptr<TcpDoor> door;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;  // gRPC's side of the door
  std::unique_ptr<grpc::Service> node;
  std::vector<std::shared_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
};

TlsServer::TlsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Create(Options options) {
  KVIST_CHECK(options.node != nullptr || !options.services.empty());
  KVIST_RETURN_IF_ERROR(endpoint::CheckTlsFiles(options.files));
  LogGrpc();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  auto state = std::make_unique<State>(std::move(options.roles));
  State* raw = state.get();
  TcpDoor::Options door;
  KVIST_ASSIGN_OR_RETURN(door.listening, ListenByTcp(options.listen, absl::StrCat(options.section, ".listen")));
  door.limits = TcpDoor::Limits::OfThisProcess();
  door.take = [raw](UniqueFd socket) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket.release();
    raw->acceptor->HandleNewConnection(&connection);
  };
  door.warn = [section = options.section](const std::string& text) { spdlog::warn("{}.listen: {}", section, text); };
  KVIST_ASSIGN_OR_RETURN(state->door, TcpDoor::Create(std::move(door)));
  if (options.node != nullptr) state->node = MakeNodeService(options.node);
  state->services = std::move(options.services);
  const std::shared_ptr<grpc::ServerCredentials> credentials = endpoint::TlsServerCredentials(options.files);
  state->check.Guard(*credentials);
  grpc::ServerBuilder builder;
  state->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.experimental().SetInterceptorCreators(state->calls.Watch());
  if (state->node != nullptr) builder.RegisterService(state->node.get());
  for (const auto& service : state->services) builder.RegisterService(service.get());
  BoundServer({.name = "tls", .request_bytes_max = options.request_bytes_max, .threads_max = kTlsThreadsMax}, &builder);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kLastCallMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAskSilentMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);  // a machine that is gone is to leave its place
  state->server = builder.BuildAndStart();
  if (state->server == nullptr)
    return absl::UnavailableError(absl::StrCat(options.section, ".listen: gRPC can't serve at ", options.listen));
  state->door->Open();
  return std::unique_ptr<TlsServer>(new TlsServer(std::move(state)));
}

TlsServer::~TlsServer() {
  state_->door->Close();  // a server that has ended would forget to close what comes then
  state_->server->Shutdown(std::chrono::system_clock::now() + kTlsGrace);
  state_->server->Wait();
}

void TlsServer::SetRoles(Roles roles) {
  state_->check.SetRoles(std::move(roles));
  state_->calls.AskAgain();
}

}  // namespace kvist::rpc
