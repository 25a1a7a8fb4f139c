#ifndef KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_
#define KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/controller/nodes.h"

namespace kvist::controller {

// Nodes that a lookup has asked in vain: others leave them alone for kPause, so that one that hangs costs few lookups anything, and never
// all threads that answer them.
//
// Threads: any. Times are on the monotonic clock.
class SilentNodes {
 public:
  // So long is waited for a node that ought to tell its chunks by itself, and doesn't. Longer: a slow one is heard more often, and a hanging
  // one costs more.
  static constexpr absl::Duration kWait = absl::Milliseconds(500);
  static constexpr absl::Duration kPause = absl::Seconds(2);

  bool Has(const NamedNode* node, absl::Time now) const {
    absl::ReaderMutexLock lock(&mutex_);
    const auto until = until_.find(node);
    return until != until_.end() && now < until->second;
  }
  void Add(const NamedNode* node, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    until_[node] = now + kPause;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<const NamedNode*, absl::Time> until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_
