#ifndef KVIST_DAEMON_METRICS_HEALTH_H_
#define KVIST_DAEMON_METRICS_HEALTH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace kvist::metrics {

// Whether a node serves, part by part. Ready means that all its parts do; a part that hasn't been started yet, or is being stopped,
// doesn't. Besides there may be parts that it can do without: what ails these is a warning.
//
// Lifecycle: made with the names of all parts, each "is not there yet" -> Watch for each as it comes, Mind for others -> Stopping.
// Threads: any; checks run on the thread that asks.
class Health {
 public:
  using Check = std::function<absl::Status()>;  // quick, or bounded by a deadline of its own
  struct Row {
    std::string part;
    absl::Status status;
    bool needed = true;
  };

  explicit Health(const std::vector<std::string>& parts);

  // The part is there; `check` says how it is whenever somebody asks, until this object is gone.
  void Watch(const std::string& part, Check check);
  // The same for a part that the node can do without, behind the others.
  void Mind(const std::string& part, Check check);
  // From here on every part is on its way out.
  void Stopping();

  std::vector<Row> Look() const;  // in the order of the constructor, then of Mind

 private:
  struct Part {
    std::string name;
    Check check;  // empty: not there yet
    bool needed = true;
  };
  mutable absl::Mutex mutex_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// Whether the socket at `path` is still the one that it was when this was called; somebody may remove or replace it, and then nobody
// new comes in although the daemon listens.
Health::Check SocketInPlace(const std::string& path);

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_HEALTH_H_
