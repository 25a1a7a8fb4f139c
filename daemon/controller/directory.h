#ifndef KVIST_DAEMON_CONTROLLER_DIRECTORY_H_
#define KVIST_DAEMON_CONTROLLER_DIRECTORY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/controller/feed.h"
#include "daemon/controller/fingerprint.h"
#include "daemon/controller/holder_index.h"
#include "daemon/controller/shared_mutex.h"
#include "daemon/controller/tellings.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"

namespace kvist::controller {

// Which nodes hold which chunks in which tiers, from what the nodes tell (feed.h). It keeps no state of its own: all of it comes back from the
// nodes. Lookups are by DirectorySearch.
//
// A node's life:
//   met ---Begin---> filling ---End---> live ---a gap, a new epoch, a wrong message, Lose---> stale ---the lease ends---> forgotten
//                       ^                 ^                                                    |  |
//                       |                 `----- Lose only: it goes on where it was -----------'  |
//                       `------------------------------ Begin ------------------------------------'
// What is stale is still told, as stale, until its node's new snapshot has ended; then it is gone at once. A first or new snapshot shows when it
// is whole. What is gone, and nodes that are forgotten, leave memory in slices (Tick).
//
// Memory:  19 to 29 bytes for a chunk on up to four nodes, 5 to 8 for each node after those (holder_table.h); 0.25 MiB empty.
// Cost:    a change or a chunk of a snapshot is one cache miss or two, asked for in advance.
// Threads: any, all of it. Messages of one node are taken one at a time, those of different nodes beside each other. A lookup waits for neither
//          (holder_index.h): it takes no lock that is held for longer than a list of a few numbers is written.
class Directory {
 public:
  static constexpr uint32_t kNodesMax = 4000;  // each may have two tellings, and some are being swept: kTellingsMax
  static constexpr uint32_t kSpacesMax = 4096;
  static constexpr uint32_t kGroupsMax = 64;

  struct Options {
    uint64_t seed[4] = {0, 0, 0, 0};  // of fingerprints; zeros: drawn at random. Only tests want others
  };
  explicit Directory(Options options);
  Directory();
  ~Directory();

  // ---- What nodes tell ----

  // The node of that name, met when it isn't known. A forgotten one has another NodeId when it comes back.
  // Errors: ResourceExhausted  kNodesMax.
  absl::StatusOr<NodeId> Meet(std::string_view name);

  // Takes a message of the node, whatever it was: lost, stale, new.
  // Errors: Aborted            something is missing before it: a gap, another epoch, a space that wasn't introduced. The node is stale, and all its
  //                            messages are refused so until the next SnapshotBegin: ask it for one.
  //         InvalidArgument    it makes no sense (a space that differs from what others said, a group or tier that isn't there); else as Aborted.
  //         ResourceExhausted  kSpacesMax, or no room for a snapshot until Tick has swept more; else as Aborted.
  //         NotFound           the node has been forgotten: Meet it again.
  absl::Status Hear(NodeId node, const FeedMessage& message);

  // Where the node may go on without a snapshot (`up_to` of its last batch), while it follows. Nothing: a snapshot is needed.
  struct Position {
    uint64_t epoch = 0;
    uint64_t sequence = 0;
  };
  std::optional<Position> PositionOf(NodeId node) const;

  // The node is no longer heard. It is told as stale until its lease ends, then Tick forgets it; any message that is taken says that it is back.
  void Lose(NodeId node, absl::Time lease_end);

  // Forgets the lost nodes whose leases have ended by `now`, and sweeps one shard of what is gone (4,096 are a round; up to 16,000 chunks each
  // at 64 M, 0.1 ms). Whether there is more to sweep: then call it again soon.
  // Threads: one at a time.
  bool Tick(absl::Time now);

  // ---- What there is ----

  struct SpaceView {
    SpaceDigest digest;
    std::string tenant = {};
    std::string model = {};
    Tokens chunk_tokens = {};
    std::vector<ReuseRule> groups = {};
  };
  // Which spaces; an absent one is any.
  struct SpaceFilter {
    std::optional<std::string_view> model = {};
    std::optional<std::string_view> tenant = {};
  };
  // In the order in which they were met. They are few, one per model and tenant, and never forgotten.
  std::vector<SpaceView> Spaces(const SpaceFilter& filter) const;

  struct NodeView {
    NodeId node;
    std::string name = {};
    uint64_t chunks = 0;  // (chunk, group) that lookups see
    bool stale = false;
    bool filling = false;         // a snapshot is on its way
    bool needs_snapshot = false;  // and none is on its way
  };
  std::vector<NodeView> Nodes() const;  // in the order of their ids
  // One of them; nothing when it is forgotten.
  std::optional<NodeView> View(NodeId node) const;
  // The spaces that it has introduced since its last SnapshotBegin, in the order of its own numbers.
  std::vector<SpaceView> SpacesOf(NodeId node) const;

  // Of everything that grows with chunks, as taken from the system.
  uint64_t memory_bytes() const { return index_.memory_bytes(); }

 private:
  friend class DirectorySearch;

  struct Space {
    SpaceId id;  // the directory's
    SpaceView view;
  };
  struct Telling {
    TellingId id = 0;
    uint64_t chunks = 0;
  };
  struct Node {
    Node(std::string_view its_name, Readers* readers) : name(its_name), reader(readers) {}
    const std::string name;
    Mutex mutex;
    Readers::Reader reader ABSL_GUARDED_BY(mutex);  // of tables that it is about to change
    bool forgotten ABSL_GUARDED_BY(mutex) = false;
    uint64_t epoch ABSL_GUARDED_BY(mutex) = 0;
    uint64_t sequence ABSL_GUARDED_BY(mutex) = 0;                               // up to which all changes were taken
    bool follows ABSL_GUARDED_BY(mutex) = false;                                // messages go on from `epoch` and `sequence`
    uint32_t slices ABSL_GUARDED_BY(mutex) = 0;                                 // of the snapshot that is filling
    std::optional<Telling> shown ABSL_GUARDED_BY(mutex);                        // live or stale
    bool stale ABSL_GUARDED_BY(mutex) = false;                                  // `shown` is
    std::optional<Telling> filling ABSL_GUARDED_BY(mutex);                      // what messages go to, while there is one
    std::optional<absl::Time> lease_end ABSL_GUARDED_BY(mutex);                 // while it is lost
    absl::flat_hash_map<uint32_t, const Space*> spaces ABSL_GUARDED_BY(mutex);  // by the node's own numbers, of `epoch`
  };

  std::shared_ptr<Node> Find(NodeId node) const;
  static NodeView ViewOf(NodeId id, const Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node.mutex);
  const Space* FindSpace(const SpaceDigest& digest) const;
  absl::StatusOr<const Space*> OpenSpace(const SpaceIntroduced& introduced);

  absl::Status Take(NodeId id, Node* node, const SpaceIntroduced& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  absl::Status Take(NodeId id, Node* node, const SnapshotBegin& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  absl::Status Take(NodeId id, Node* node, const SnapshotSlice& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  absl::Status Take(NodeId id, Node* node, const SnapshotEnd& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  absl::Status Take(NodeId id, Node* node, const ChangeBatch& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  // Whether a message of that epoch can be taken.
  absl::Status Follows(const Node& node, uint64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(node.mutex);
  // The space that the node calls by that number; null: it hasn't introduced it.
  static const Space* KnownSpace(const Node& node, SpaceId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node.mutex);
  // To the telling that is filling, else to the one that is shown.
  absl::Status TakeChunks(Node* node, const std::vector<ChunkState>& chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  // Whether what is shown of it is true or only was.
  void SetStale(Node* node, bool stale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);
  void DropFilling(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node->mutex);

  const Fingerprint fingerprint_;
  HolderIndex index_;
  Tellings tellings_;
  uint32_t next_shard_ = 0;  // Tick's

  // Locked in this order: nodes_mutex_, a node's, spaces_mutex_, what index_ and tellings_ have.
  mutable SharedMutex nodes_mutex_;
  uint32_t next_node_ ABSL_GUARDED_BY(nodes_mutex_) = 0;
  absl::flat_hash_map<NodeId, std::shared_ptr<Node>> nodes_ ABSL_GUARDED_BY(nodes_mutex_);
  std::map<std::string, NodeId, std::less<>> by_name_ ABSL_GUARDED_BY(nodes_mutex_);
  mutable SharedMutex spaces_mutex_;
  std::vector<std::unique_ptr<const Space>> spaces_ ABSL_GUARDED_BY(spaces_mutex_);
  std::map<SpaceDigest, const Space*> by_digest_ ABSL_GUARDED_BY(spaces_mutex_);
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_DIRECTORY_H_
