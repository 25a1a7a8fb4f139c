#ifndef KVIST_DAEMON_CTL_CHANNEL_H_
#define KVIST_DAEMON_CTL_CHANNEL_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/ctl/target.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace kvist::ctl {

// A channel to the target. A socket is connected to at once, a host by TLS with the first call.
//
// Errors, which say what to do: FailedPrecondition  nobody is behind the socket.  PermissionDenied  there is no right to open it.
//         ResourceExhausted  somebody is behind it, and takes no connections.  Those of CheckTlsFiles, with kvistctl's options that name the files.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Target& target);

// The process that listens at the target's socket; 0 when there is none, or it is in another PID namespace. It answers for a process
// that is stuck, too, and has its number as it is here, which in a container isn't what that process knows.
pid_t ListenerOf(const Target& target);

// The one place where gRPC's errors become ours.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_CHANNEL_H_
