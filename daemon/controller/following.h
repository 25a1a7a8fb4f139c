#ifndef KVIST_DAEMON_CONTROLLER_FOLLOWING_H_
#define KVIST_DAEMON_CONTROLLER_FOLLOWING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/controller/directory.h"
#include "daemon/controller/directory_search.h"
#include "daemon/controller/nodes.h"
#include "daemon/rpc/node_control.h"
#include "daemon/rpc/prompt.h"

namespace kvist::controller {

// Keeps a directory of what the nodes of a controller tell, those that can be followed, and answers lookups from it where it is fresh.
//
//   connect, from the last position ---> hear ---the stream ends, or makes no sense---> lost ---a pause, longer each time---> connect
//
// A node is *fresh* while all that it held is known as of a moment within Options::fresh_for: its snapshot has ended, nothing is missing since,
// and it has said that nothing was untold, which idle nodes do once a second. What is said of one that isn't is what it says when it is asked,
// so it isn't said here.
//
// Lifecycle: follows from when it is made until it is destroyed, which ends the streams.
// Threads: the calls any; inside, one for each node, which waits for its stream, and one that sweeps the directory.
class Following {
 public:
  struct Options {
    // Longer: a node that hangs is believed for longer. More than two of the node's beats, or they may be missed.
    absl::Duration fresh_for = absl::Seconds(3);
    // Between two attempts to follow a node: the first pause, doubled up to the last.
    absl::Duration pause_min = absl::Milliseconds(100);
    absl::Duration pause_max = absl::Seconds(2);
    // What is known of a node that is lost is kept so long, for it may go on where it was. Longer: more memory for the dead.
    absl::Duration lease = absl::Minutes(10);
  };
  // `nodes` must outlive it.
  Following(const Nodes* nodes, Options options);
  ~Following();
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;

  // What a fresh node holds of a prompt, as rpc::NodeControl::Lookup says it, and how long ago the node held exactly that.
  struct Known {
    std::vector<rpc::Found> spaces;  // that fit, in the node's order
    absl::Duration age;
  };
  // Shape: [node]; nothing for nodes that must be asked: those that aren't fresh, and those with more spaces that fit than one lookup takes. With
  // several cache groups `on_disk` may be more than it is, never less.
  std::vector<std::optional<Known>> Lookup(const std::vector<const NamedNode*>& nodes, const rpc::SpaceFilter& filter,
                                           const rpc::Prompt& prompt);

  struct State {
    bool fresh = false;
    uint64_t chunks = 0;
    std::optional<absl::Duration> age = {};  // absent: it was never heard
    std::string why_not = {};
  };
  // Nothing for a node that can't be followed.
  std::optional<State> StateOf(const NamedNode* node) const;

 private:
  static constexpr size_t kSpacesMax = 256;  // as one lookup of a node's own
  struct Followed {
    const NamedNode* node = nullptr;
    mutable absl::Mutex mutex;
    std::shared_ptr<ChunkStream> stream ABSL_GUARDED_BY(mutex);  // that is read
    std::optional<NodeId> id ABSL_GUARDED_BY(mutex);             // in the directory
    absl::Time heard ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
    absl::Time level ABSL_GUARDED_BY(mutex) = absl::InfinitePast();  // it was heard, and nothing was untold
    absl::Time began ABSL_GUARDED_BY(mutex) = absl::InfinitePast();  // the stream
    std::string why_not ABSL_GUARDED_BY(mutex) = "not connected yet";
    std::thread thread;
  };

  void Follow(Followed* followed);
  // Takes what the stream tells until it ends; why it has. `pause` is short again once it has told something.
  absl::Status Hear(Followed* followed, NodeId id, ChunkStream* stream, absl::Duration* pause);
  void Sweep();
  // Waits so long; whether it is still to go on.
  bool Pause(absl::Duration duration);
  const Followed* Find(const NamedNode* node) const;
  // The node in the directory, and how long ago all of it was known, if it is fresh.
  struct Fresh {
    NodeId id;
    absl::Duration age;
  };
  std::optional<Fresh> FreshNow(const Followed& followed) const;

  const Options options_;
  Directory directory_;
  std::vector<std::unique_ptr<Followed>> followed_;
  absl::Mutex mutex_;
  absl::CondVar stops_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<DirectorySearch>> searches_ ABSL_GUARDED_BY(mutex_);  // that nobody uses now
  std::thread sweeper_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FOLLOWING_H_
