#ifndef KVIST_DAEMON_CONTROLLER_FEED_SOURCE_H_
#define KVIST_DAEMON_CONTROLLER_FEED_SOURCE_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/controller/feed.h"
#include "daemon/controller/node_feed.h"

namespace kvist::controller {

// One who watches a node's chunks.
//
// Threads: one at a time. Owns: its place among the node's watchers, until it is destroyed.
class ChunkWatch {
 public:
  virtual ~ChunkWatch() = default;
  // What it is to be told next; waits until there is something, or `until` (monotonic clock): nothing then.
  // Errors: Unavailable  the node is stopping.
  virtual absl::StatusOr<std::optional<FeedMessage>> Next(absl::Time until) = 0;
  // After Next had nothing: a batch without changes, which says that the node lives and that the watcher knows everything; nothing when
  // the node hasn't said so since the last time.
  virtual std::optional<ChangeBatch> Beat() = 0;
};

// A node whose chunks can be watched: a kvistd's (daemon/chunk_feed.h), or a test's.
//
// Threads: any.
class FeedSource {
 public:
  virtual ~FeedSource() = default;
  // Who knows all up to `from` goes on there, if that is still kept.
  // Errors: ResourceExhausted  eight watch already. DeadlineExceeded, Unavailable  the node doesn't answer.
  virtual absl::StatusOr<std::unique_ptr<ChunkWatch>> Watch(std::optional<NodeFeed::Position> from, absl::Time deadline) = 0;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FEED_SOURCE_H_
