#include "daemon/rpc/admin_server.h"

#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/rpc/admin_socket.h"
#include "daemon/rpc/node_service.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

// A prompt of a million tokens, which most requests are far below.
constexpr int kRequestBytesMax = 4 << 20;
constexpr int kThreadsMax = 16;  // calls at a time, gRPC's own pollers included; a few operators and a scraper
constexpr std::chrono::seconds kGrace(1);

class NarrowUmask {
 public:
  NarrowUmask() : before_(umask(0777)) {}
  ~NarrowUmask() { umask(before_); }
  NarrowUmask(const NarrowUmask&) = delete;
  NarrowUmask& operator=(const NarrowUmask&) = delete;

 private:
  mode_t before_;
};

}  // namespace

struct AdminServer::State {
  std::string socket;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Server> server;
};

AdminServer::AdminServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Create(Options options) {
  KVIST_CHECK(options.node != nullptr);
  KVIST_RETURN_IF_ERROR(FreeSocketPath(options.socket));

  auto state = std::make_unique<State>();
  state->socket = options.socket;
  state->service = MakeNodeService(options.node);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(SocketAddress(options.socket), grpc::InsecureServerCredentials());
  builder.RegisterService(state->service.get());
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("admin").SetMaxThreads(kThreadsMax));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  {
    const NarrowUmask narrow;
    state->server = builder.BuildAndStart();
  }
  if (state->server == nullptr)
    return absl::UnavailableError(absl::StrCat("admin.socket: gRPC can't listen at ", options.socket));
  std::unique_ptr<AdminServer> server(new AdminServer(std::move(state)));
  KVIST_RETURN_IF_ERROR(OpenSocketTo(options.socket, options.group, options.mode));
  return server;
}

AdminServer::~AdminServer() {
  state_->server->Shutdown(std::chrono::system_clock::now() + kGrace);
  state_->server->Wait();
  state_->server.reset();  // removes the socket, too; not in every version of gRPC
  unlink(state_->socket.c_str());
}

}  // namespace kvist::rpc
