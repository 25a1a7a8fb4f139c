#ifndef KVIST_DAEMON_METRICS_EXPOSITION_H_
#define KVIST_DAEMON_METRICS_EXPOSITION_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "daemon/metrics/figures.h"

namespace kvist::metrics {

// A node's figures as Prometheus sees them. Every series is there from the first time on, with 0 where nothing has happened, and none
// is made by what a client sends: tenants with a row are those of the configuration.
//
// Shape:   histograms have a bucket for each power of two from 256 ns to 34 s (LatencyHistogram has four; a scrape needn't).
// Units:   Prometheus's: seconds, bytes; names end with the unit, counters with _total.
// Threads: any.
std::vector<prometheus::MetricFamily> Expose(const Figures& figures);

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_EXPOSITION_H_
