#ifndef KVIST_DAEMON_CONTROLLER_NODE_API_H_
#define KVIST_DAEMON_CONTROLLER_NODE_API_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/controller/feed.h"
#include "daemon/controller/node_feed.h"
#include "proto/node.pb.h"

namespace kvist::controller {

// Called once, on any thread, perhaps before the call that it was given to returns.
template <class Reply>
using Done = std::function<void(absl::StatusOr<Reply>)>;

// What a node tells of its chunks (feed.h), from over the wire.
//
// Threads: Read on one, Cancel on any.
class ChunkStream {
 public:
  virtual ~ChunkStream() = default;
  // The next message; waits for it, however long that takes.
  // Errors: InvalidArgument  it was none.  Cancelled  by Cancel.  Others: why the stream has ended; so it has with the first two.
  virtual absl::StatusOr<FeedMessage> Read() = 0;
  // Ends it: Read doesn't wait any more.
  virtual void Cancel() = 0;
};

// One node as a controller sees it: the calls of proto/node.proto that it needs, and where the node is. Implemented over a kvistd's socket
// (remote_node.h), inside a kvistd (local_node.h), and by tests.
//
// Lifecycle: may be destroyed while calls are on their way; their `done` is still called.
// Threads: any. Calls don't wait for a node elsewhere; one in this process is asked at once, on the caller's thread.
// Owns: a request lives until its `done` is destroyed. `done` is destroyed soon after it was called.
// Errors: those of the call in proto/node.proto.  DeadlineExceeded  no answer until `deadline` (monotonic clock).  Unavailable  nobody is there.
class NodeApi {
 public:
  virtual ~NodeApi() = default;

  // Where its API is, as the configuration says it: unix:PATH or tls:HOST:PORT; "" for this process.
  virtual std::string address() const = 0;
  // The IP addresses of its machine, as it says itself.
  virtual void Ips(const node::v1::StatusRequest& request, absl::Time deadline, Done<std::vector<std::string>> done) = 0;

  virtual void Status(const node::v1::StatusRequest& request, absl::Time deadline, Done<node::v1::StatusReply> done) = 0;
  virtual void Lookup(const node::v1::LookupRequest& request, absl::Time deadline, Done<node::v1::LookupReply> done) = 0;
  virtual void Clear(const node::v1::ClearRequest& request, absl::Time deadline, Done<node::v1::Job> done) = 0;
  virtual void ClearPrompt(const node::v1::ClearPromptRequest& request, absl::Time deadline,
                           Done<node::v1::PromptJobsReply> done) = 0;
  virtual void Move(const node::v1::MoveRequest& request, absl::Time deadline, Done<node::v1::PromptJobsReply> done) = 0;
  virtual void Prefetch(const node::v1::PrefetchRequest& request, absl::Time deadline,
                        Done<node::v1::PromptJobsReply> done) = 0;
  virtual void Compress(const node::v1::CompressRequest& request, absl::Time deadline,
                        Done<node::v1::PromptJobsReply> done) = 0;
  virtual void Decompress(const node::v1::DecompressRequest& request, absl::Time deadline,
                          Done<node::v1::PromptJobsReply> done) = 0;
  virtual void AddPin(const node::v1::AddPinRequest& request, absl::Time deadline, Done<node::v1::AddPinReply> done) = 0;
  virtual void ListPins(const node::v1::ListPinsRequest& request, absl::Time deadline,
                        Done<node::v1::ListPinsReply> done) = 0;
  virtual void RemovePin(const node::v1::RemovePinRequest& request, absl::Time deadline, Done<node::v1::Pin> done) = 0;
  virtual void ListJobs(const node::v1::ListJobsRequest& request, absl::Time deadline,
                        Done<node::v1::ListJobsReply> done) = 0;
  virtual void CancelJob(const node::v1::CancelJobRequest& request, absl::Time deadline, Done<node::v1::Job> done) = 0;

  // What it tells of its chunks, from there on when it still can, else from a snapshot. A node that can't be followed is asked only: null.
  virtual std::unique_ptr<ChunkStream> Follow(std::optional<NodeFeed::Position>) { return nullptr; }
  virtual bool can_be_followed() const { return false; }
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_NODE_API_H_
