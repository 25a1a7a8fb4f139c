#include "daemon/ctl/channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/endpoint/credentials.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::ctl {
namespace {

absl::Status WhyNot(const Target& target, int error) {
  const std::string& socket = target.address.socket;
  const std::string& program = target.program;
  std::string why;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      why = absl::StrCat(
          "no ", program, " at ", socket, ": is it running? Start it, or name its ",
          program == kNodeProgram ? "admin socket by --socket or $KVIST_ADMIN_SOCKET" : "socket by --controller");
      break;
    case ECONNREFUSED:
      why = absl::StrCat("no ", program, " behind ", socket, ": it has ended without removing its socket. Start it again");
      break;
    case EACCES:
    case EPERM:
      code = absl::StatusCode::kPermissionDenied;
      why = absl::StrCat("uid ", geteuid(), " may not open ", socket,
                         ": run kvistctl as root or as a member of the socket's group (",
                         program == kNodeProgram ? "admin" : "controller", ".socket_group)");
      break;
    case EAGAIN:
      code = absl::StatusCode::kResourceExhausted;
      why = absl::StrCat(program, " at ", socket, " takes no connections: it is stuck, or has too many callers. Try again");
      break;
    case EPROTOTYPE:
      why = absl::StrCat(socket, " is no admin socket (perhaps the engines'): the admin socket is admin.sock by default");
      break;
    default: why = absl::StrCat("can't connect to ", socket, ": ", std::strerror(error));
  }
  return {code, why};
}

absl::StatusOr<UniqueFd> ConnectTo(const Target& target) {
  const std::string& path = target.address.socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return WhyNot(target, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus("can't make a socket", errno);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return WhyNot(target, errno);
  return fd;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

pid_t ListenerOf(const Target& target) {
  if (target.address.is_tls()) return 0;
  const absl::StatusOr<UniqueFd> fd = ConnectTo(target);
  ucred peer{};
  socklen_t length = sizeof peer;
  if (!fd.ok() || getsockopt(fd->get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return 0;
  return peer.pid;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Target& target) {
  if (!target.address.is_tls()) {
    KVIST_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(target));
    // A channel over a connection of ours: connect() says why it failed, no proxy comes in between, and a path is no URI.
    return grpc::CreateInsecureChannelFromFd("kvistd", fd.release());
  }
  KVIST_RETURN_IF_ERROR(
      endpoint::CheckTlsFiles(target.tls, {.certificate = "--tls-certificate", .key = "--tls-key", .ca = "--tls-ca"}));
  endpoint::HearGrpc([](const char*) {});  // the call's error says the same
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return endpoint::OpenTlsChannel(target.address, target.tls, arguments);
}

}  // namespace kvist::ctl
