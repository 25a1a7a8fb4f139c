#ifndef KVIST_DAEMON_CONTROLLER_NODE_FEED_H_
#define KVIST_DAEMON_CONTROLLER_NODE_FEED_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "daemon/controller/feed.h"
#include "storage/base/ids.h"

namespace kvist::controller {

// The node's side of feed.h: numbers its changes, keeps the last of them, and tells any number of watchers, each from where it is. Whoever has
// fallen behind what is kept, or is new, is told a snapshot, while the changes go on.
//
// How a snapshot meets changes. It is read in slices, from the node as it is at that moment, and between them the watcher is told the changes
// since SnapshotBegin, all of them, in order. Nothing is lost: a chunk that is there from first slice to last is in one, one that comes or goes is
// in the changes. Nothing is undone: a slice is never older than a change told before it, for Read gives the node as it is; a change told
// after it may be older than the slice, and then the newer ones follow, at the latest before SnapshotEnd.
//
// Lifecycle: one for each life of the node (epoch). Introduce a space before its first change; Watch, Next again and again, Unwatch.
// Memory:    40 bytes for each of Options::changes_kept; a few numbers for each watcher.
// Threads:   one.
class NodeFeed {
 public:
  struct Options {
    uint32_t changes_kept = 65'536;     // more: a watcher may be away or slow for longer without a new snapshot. At least 1
    uint32_t watchers_max = 8;          // each costs what it is told
    uint32_t batch_changes_max = 1024;  // of one message, before those of one chunk become one. At least 1
    uint32_t slice_chunks_max = 1024;   // what a slice holds at most, and so what one Next does. At least 1
  };
  struct Position {
    uint64_t epoch = 0;
    uint64_t sequence = 0;
  };
  using WatcherId = Id<struct WatcherTag, uint64_t>;  // never reused

  // Reads up to `most` chunks from `cursor` on (0: from the first), adds them to `chunks`, and returns the cursor to go on from, kReadAll when there
  // are no more. Chunks that are there all the time from the first call to the last are given at least once; those that come or go
  // meanwhile are or aren't. What is given is as the node is now: at least with all changes that this feed has been told of, in spaces that it knows.
  using Read = absl::FunctionRef<uint64_t(uint64_t cursor, uint32_t most, std::vector<ChunkState>* chunks)>;
  static constexpr uint64_t kReadAll = UINT64_MAX;

  NodeFeed(uint64_t epoch, Options options);

  // A space that the node has met; its epoch is this feed's. They are kept for good, as the node does.
  void Introduce(SpaceIntroduced space);
  // Where a chunk is now.
  void Changed(const ChunkState& chunk);
  // The node has changed in a way that isn't told chunk by chunk: everybody is told a snapshot that begins now.
  void ChangedAll();

  // Somebody who wants to be told everything; who knows all up to `from` is told what came after, if that is still kept, else a snapshot.
  // Errors: ResourceExhausted  watchers_max.
  absl::StatusOr<WatcherId> Watch(std::optional<Position> from);
  void Unwatch(WatcherId watcher);

  // What the watcher is to be told next, or nothing: it knows everything. Bounded by batch_changes_max or slice_chunks_max.
  std::optional<FeedMessage> Next(WatcherId watcher, Read read);

  // The number of the last change.
  Position position() const { return {epoch_, sequence_}; }
  uint32_t watchers() const { return static_cast<uint32_t>(watchers_.size()); }

 private:
  enum class Phase : uint8_t { kBegin, kReading, kRead, kFollowing };
  struct Watcher {
    Phase phase = Phase::kBegin;
    uint64_t sequence = 0;    // it knows all changes up to it, or will by what it has been sent
    uint64_t cursor = 0;      // of kReading
    uint32_t slices = 0;      // of this snapshot
    bool slice_next = true;   // slices and changes take turns
    uint64_t read_until = 0;  // of kRead: the last change before the last slice
    size_t introduced = 0;    // of spaces_
  };
  bool Kept(uint64_t sequence) const { return sequence <= sequence_ && sequence_ - sequence <= options_.changes_kept; }
  FeedMessage NextSlice(Watcher* watcher, Read read) const;
  FeedMessage NextBatch(Watcher* watcher) const;

  const uint64_t epoch_;
  const Options options_;
  uint64_t sequence_ = 0;
  std::vector<ChunkState> ring_;  // [changes_kept] change n is at n % changes_kept
  std::vector<SpaceIntroduced> spaces_;
  uint64_t next_watcher_ = 0;
  absl::flat_hash_map<WatcherId, Watcher> watchers_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_NODE_FEED_H_
