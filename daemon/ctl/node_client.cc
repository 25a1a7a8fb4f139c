#include "daemon/ctl/node_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::ctl {
namespace {

// The one place where gRPC's errors become ours.
absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

absl::Status WhyNot(const std::string& socket, int error) {
  std::string why;
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      why = absl::StrCat("no kvistd at ", socket,
                         ": is it running? Start it, or name its admin socket by --socket or $KVIST_ADMIN_SOCKET");
      break;
    case ECONNREFUSED:
      why = absl::StrCat("no kvistd behind ", socket, ": it has ended without removing its socket. Start it again");
      break;
    case EACCES:
    case EPERM:
      why = absl::StrCat("uid ", geteuid(), " may not open ", socket,
                         ": run kvistctl as root or as a member of the socket's group (admin.socket_group)");
      break;
    case EAGAIN:
      why = absl::StrCat("kvistd at ", socket, " takes no connections: it is stuck, or has too many callers. Try again");
      break;
    case EPROTOTYPE:
      why = absl::StrCat(socket, " is no admin socket (perhaps the engines'): the admin socket is admin.sock by default");
      break;
    default: why = absl::StrCat("can't connect to ", socket, ": ", std::strerror(error));
  }
  return absl::FailedPreconditionError(why);
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return WhyNot(path, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus("can't make a socket", errno);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return WhyNot(path, errno);
  return fd;
}

}  // namespace

struct NodeClient::State {
  std::unique_ptr<node::v1::Node::Stub> stub;

  template <class Request, class Reply>
  absl::StatusOr<Reply> Call(grpc::Status (node::v1::Node::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }
};

NodeClient::NodeClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
NodeClient::NodeClient(NodeClient&&) noexcept = default;
NodeClient& NodeClient::operator=(NodeClient&&) noexcept = default;
NodeClient::~NodeClient() = default;

absl::StatusOr<NodeClient> NodeClient::Connect(const std::string& socket) {
  KVIST_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(socket));
  // A channel over a connection of ours: connect() says why it failed, no proxy comes in between, and a path is no URI.
  auto state = std::make_unique<State>();
  state->stub = node::v1::Node::NewStub(grpc::CreateInsecureChannelFromFd("kvistd", fd.release()));
  return NodeClient(std::move(state));
}

absl::StatusOr<node::v1::StatusReply> NodeClient::Status(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Status, node::v1::StatusRequest(), timeout);
}

absl::StatusOr<node::v1::SessionsReply> NodeClient::Sessions(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Sessions, node::v1::SessionsRequest(), timeout);
}

absl::StatusOr<node::v1::ClearReply> NodeClient::Clear(const std::string& space, absl::Duration timeout) {
  node::v1::ClearRequest request;
  request.set_space(space);
  return state_->Call(&node::v1::Node::Stub::Clear, request, timeout);
}

absl::StatusOr<node::v1::ReloadReply> NodeClient::Reload(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Reload, node::v1::ReloadRequest(), timeout);
}

std::string DefaultSocket() {
  const char* named = std::getenv("KVIST_ADMIN_SOCKET");
  if (named != nullptr && named[0] != '\0') return named;
  const std::string own_dir = DefaultRuntimeDir();
  const std::string own = absl::StrCat(own_dir, "/", kAdminSocketName);
  // In /tmp somebody else could have made the directory, and a daemon that is none.
  if (access(own.c_str(), F_OK) == 0 && (geteuid() == 0 || IsPrivateDir(own_dir))) return own;
  return absl::StrCat(kSystemRuntimeDir, "/", kAdminSocketName);
}

}  // namespace kvist::ctl
