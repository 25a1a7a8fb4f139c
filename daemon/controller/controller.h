#ifndef KVIST_DAEMON_CONTROLLER_CONTROLLER_H_
#define KVIST_DAEMON_CONTROLLER_CONTROLLER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/controller/following.h"
#include "daemon/controller/nodes.h"
#include "daemon/controller/silent_nodes.h"
#include "proto/controller.pb.h"

namespace kvist::controller {

// The calls of proto/controller.proto over some nodes, without the wire. It keeps nothing between calls but a directory of what nodes tell, those
// that can be followed.
//
// Threads: any; each call waits for its nodes, at most until `deadline` (monotonic clock). A node has 5 s, or four fifths of the time there is.
// Errors: those that the proto says.
class Controller {
 public:
  static constexpr int kWatchersMax = 8;  // each keeps a thread of the caller's, and others want answers

  explicit Controller(Nodes nodes, Following::Options following = {});
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  absl::StatusOr<v1::LookupReply> Lookup(const v1::LookupRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::QueryIpReply> QueryIp(const v1::QueryIpRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::JobsReply> Move(const v1::MoveRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::JobsReply> Prefetch(const v1::PrefetchRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::JobsReply> Clear(const v1::ClearRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::JobsReply> Compress(const v1::CompressRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::JobsReply> Decompress(const v1::DecompressRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::PinReply> Pin(const v1::PinRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::PinnedPrompt> Unpin(const v1::UnpinRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::ListPinsReply> ListPins(const v1::ListPinsRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::HealthReply> Health(const v1::HealthRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::ListNodesReply> ListNodes(const v1::ListNodesRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::Job> GetJob(const v1::GetJobRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request, absl::Time deadline) const;
  absl::StatusOr<v1::ListJobsReply> ListJobs(const v1::ListJobsRequest& request, absl::Time deadline) const;

  // Writes the job whenever it has got on, until it has ended; `write` returns whether the watcher takes it, `gone` whether there is none any
  // more, and is asked every 200 ms at least. Errors also: Cancelled  no watcher.
  absl::Status WatchJob(const v1::WatchJobRequest& request, absl::Time deadline,
                        const std::function<bool(const v1::Job&)>& write, const std::function<bool()>& gone);

 private:
  absl::StatusOr<v1::JobsReply> ClearSpaces(const v1::ClearRequest& request, const std::vector<const NamedNode*>& nodes,
                                            absl::Time deadline) const;
  absl::StatusOr<v1::Job> JobOf(const std::string& id, absl::Time deadline) const;

  std::optional<v1::Followed> FollowedOf(const NamedNode* node) const;

  const Nodes nodes_;
  std::unique_ptr<Following> following_;  // none: no node can be followed
  mutable SilentNodes silent_;            // of those that are followed
  std::atomic<int> watchers_{0};
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_CONTROLLER_H_
