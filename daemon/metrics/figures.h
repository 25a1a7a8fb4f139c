#ifndef KVIST_DAEMON_METRICS_FIGURES_H_
#define KVIST_DAEMON_METRICS_FIGURES_H_

#include <cstdint>

#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/session/activity.h"
#include "storage/base/units.h"

namespace kvist::metrics {

// How connections of engines ended.
struct ConnectionCounts {
  uint64_t refused = 0;  // before or at the handshake
  uint64_t exited = 0;   // sessions, from here on
  uint64_t hung_up = 0;
  uint64_t broke_protocol = 0;
};

// What a node knows of itself at one moment; wiring reads it on the reactor's thread. Counts are since the start.
struct Figures {
  core::CoreStatus core;
  session::Activity::Rows traffic;
  session::Latencies latencies;
  ConnectionCounts connections;
  Bytes pool_capacity{}, pool_used{}, pool_touched{};
  uint64_t pool_slots = 0;
  absl::Duration uptime;
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_FIGURES_H_
