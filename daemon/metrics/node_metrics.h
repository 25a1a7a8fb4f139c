#ifndef KVIST_DAEMON_METRICS_NODE_METRICS_H_
#define KVIST_DAEMON_METRICS_NODE_METRICS_H_

#include <prometheus/collectable.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/metrics/figures.h"

namespace kvist::metrics {

// What is scraped: a node's figures, asked for at each scrape, and whether it answered.
//
// A node that doesn't answer is shown by its last figures, so that counters don't jump, and by kvist_reactor_up 0.
// Threads: any.
class NodeMetrics : public prometheus::Collectable {
 public:
  // The node's figures now, or why it doesn't tell them; must be bounded in time.
  using Source = std::function<absl::StatusOr<std::shared_ptr<const Figures>>()>;

  // `before` is shown until the node has answered for the first time.
  NodeMetrics(Source source, Figures before);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Source source_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const Figures> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_NODE_METRICS_H_
