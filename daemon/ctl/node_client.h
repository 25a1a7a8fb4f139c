#ifndef KVIST_DAEMON_CTL_NODE_CLIENT_H_
#define KVIST_DAEMON_CTL_NODE_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/ctl/target.h"
#include "proto/node.pb.h"
#include "storage/base/units.h"

namespace kvist::ctl {

// The admin API of the kvistd behind a unix socket, or at a TCP address by TLS.
//
// Threads: one at a time. Each call ends within its timeout, a list of several pages within 100 of them.
// Errors:  FailedPrecondition  nobody can be reached: no socket, no daemon behind it.  PermissionDenied  there is no right to open it.
//          ResourceExhausted  the daemon takes no connections.
//          Unavailable, DeadlineExceeded  the daemon was reached, but went away or didn't answer in time.
//          Others are the daemon's own words.
//          By TLS nobody is reached before the first call: Unavailable, with the reason, is what that says then.
class NodeClient {
 public:
  // Errors also: those of CheckTlsFiles, with kvistctl's options that name the files.
  static absl::StatusOr<NodeClient> Connect(const Target& target);
  static absl::StatusOr<NodeClient> Connect(const std::string& socket);
  NodeClient(NodeClient&&) noexcept;
  NodeClient& operator=(NodeClient&&) noexcept;
  ~NodeClient();

  absl::StatusOr<node::v1::StatusReply> Status(absl::Duration timeout);
  absl::StatusOr<node::v1::SsdReply> Ssd(absl::Duration timeout);
  // All of them, page by page: those that come or go meanwhile may be there or not.
  absl::StatusOr<node::v1::SessionsReply> Sessions(absl::Duration timeout);
  // Starts to clear the space whose digest begins with `space`, or everything when it is empty. `request` as in node.proto.
  absl::StatusOr<node::v1::Job> Clear(const node::v1::ClearRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::ReloadReply> Reload(absl::Duration timeout);
  absl::StatusOr<node::v1::ListJobsReply> ListJobs(absl::Duration timeout);
  absl::StatusOr<node::v1::Job> CancelJob(uint64_t id, absl::Duration timeout);
  // Watches a job until it has ended, and returns it. `look` gets it now and whenever it has got on, and null every 50 ms when it hasn't;
  // when it says false the watch ends. Errors also: Cancelled  `look` has said false. The job goes on, whatever ends the watch.
  absl::StatusOr<node::v1::Job> WatchJob(uint64_t id, absl::Duration timeout,
                                         const std::function<bool(const node::v1::Job*)>& look);
  absl::StatusOr<node::v1::ListQuotasReply> ListQuotas(absl::Duration timeout);
  // 0 ends it.
  absl::StatusOr<node::v1::Quota> SetQuota(const std::string& tenant, Bytes bytes, absl::Duration timeout);
  absl::StatusOr<node::v1::LookupReply> Lookup(const node::v1::LookupRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::AddPinReply> AddPin(const node::v1::AddPinRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::PromptJobsReply> ClearPrompt(const node::v1::ClearPromptRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::PromptJobsReply> Move(const node::v1::MoveRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::PromptJobsReply> Prefetch(const node::v1::PrefetchRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::PromptJobsReply> Compress(const node::v1::CompressRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::PromptJobsReply> Decompress(const node::v1::DecompressRequest& request, absl::Duration timeout);
  absl::StatusOr<node::v1::ListPinsReply> ListPins(absl::Duration timeout);  // all, as Sessions
  absl::StatusOr<node::v1::Pin> RemovePin(uint64_t id, absl::Duration timeout);

 private:
  struct State;
  explicit NodeClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Where kvistctl looks for a daemon when it is told nothing: $KVIST_ADMIN_SOCKET, else the socket of this user's own daemon when
// there is one, else the system's, /run/kvist/admin.sock.
std::string DefaultSocket();
// And the files for a target by TLS: $KVIST_TLS_CERTIFICATE, $KVIST_TLS_KEY and $KVIST_TLS_CA.
endpoint::TlsFiles DefaultTlsFiles();

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_NODE_CLIENT_H_
