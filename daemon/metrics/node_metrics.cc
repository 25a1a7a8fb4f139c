#include "daemon/metrics/node_metrics.h"

#include <utility>

#include "daemon/metrics/exposition.h"

namespace kvist::metrics {

NodeMetrics::NodeMetrics(Source source, Figures before)
    : source_(std::move(source)), last_(std::make_shared<const Figures>(std::move(before))) {}

std::vector<prometheus::MetricFamily> NodeMetrics::Collect() const {
  const absl::StatusOr<std::shared_ptr<const Figures>> now = source_();
  std::shared_ptr<const Figures> shown;
  {
    absl::MutexLock lock(&mutex_);
    if (now.ok()) last_ = *now;
    shown = last_;
  }
  std::vector<prometheus::MetricFamily> families = Expose(*shown);
  prometheus::MetricFamily up;
  up.name = "kvist_reactor_up";
  up.help = "1 when the reactor answered this scrape; else all other series are as they were when it last did.";
  up.type = prometheus::MetricType::Gauge;
  up.metric.emplace_back().gauge.value = now.ok() ? 1 : 0;
  families.push_back(std::move(up));
  return families;
}

}  // namespace kvist::metrics
