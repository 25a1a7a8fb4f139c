#ifndef KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_
#define KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/controller/nodes.h"
#include "storage/base/clock.h"

namespace kvist::controller {

// Nodes that a lookup has asked in vain: others leave them alone for kPause, and then one asks again. So one that hangs costs few lookups anything.
//
// Threads: any. Times are on the monotonic clock.
class SilentNodes {
 public:
  // So long is waited for a node that ought to tell its chunks by itself, and doesn't. Longer: a slow one is heard more often, and a hanging
  // one costs more.
  static constexpr absl::Duration kWait = absl::Milliseconds(500);
  static constexpr absl::Duration kPause = absl::Seconds(2);

  // Whether the caller may ask it, and shall say by Heard what came of it: any may, until one was asked in vain; then one after each pause.
  bool MayAsk(const NamedNode* node, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    const auto until = until_.find(node);
    if (until == until_.end()) return true;
    if (now < until->second) return false;
    until->second = now + kWait;
    return true;
  }
  void Heard(const NamedNode* node, bool answered) {
    absl::MutexLock lock(&mutex_);
    if (answered) {
      until_.erase(node);
    } else {
      until_[node] = MonotonicNow() + kPause;
    }
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<const NamedNode*, absl::Time> until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_SILENT_NODES_H_
