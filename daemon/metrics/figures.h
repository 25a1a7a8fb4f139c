#ifndef KVIST_DAEMON_METRICS_FIGURES_H_
#define KVIST_DAEMON_METRICS_FIGURES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/session/activity.h"
#include "storage/base/units.h"
#include "storage/remote/verdict.h"
#include "storage/ssd/store.h"

namespace kvist::metrics {

// How connections of engines ended.
struct ConnectionCounts {
  uint64_t refused = 0;  // before or at the handshake
  uint64_t exited = 0;   // sessions, from here on
  uint64_t hung_up = 0;
  uint64_t broke_protocol = 0;
};

// The tier on disk. Without one all is 0, for as many devices as the configuration names.
struct SsdFigures {
  bool there = false, writable = false, recovering = false;
  std::vector<ssd::Store::DeviceRow> devices;
  std::vector<Bytes> moved;  // [device] of what was written: what was there already
  ssd::Store::Scrubbed scrubbed;
  uint64_t commits = 0, commits_failed = 0;
  uint64_t catalogs_set_aside = 0;
};

// The store beyond the node.
struct RemoteFigures {
  bool there = false;
  bool reachable = false;
  uint64_t breaker_opened = 0;
  Bytes read{}, written{}, on_their_way{};
  std::array<uint64_t, remote::kVerdicts> verdicts{};  // what was found where an object was read
};

// What a node knows of itself at one moment; wiring reads it on the reactor's thread. Counts are since the start.
struct Figures {
  core::CoreStatus core;
  session::Activity::Rows traffic;
  session::Latencies latencies;
  ConnectionCounts connections;
  SsdFigures ssd;
  RemoteFigures remote;
  Bytes pool_capacity{}, pool_used{}, pool_touched{};
  uint64_t pool_slots = 0;
  uint64_t gpus = 0;        // on which engines have registered
  Bytes gpu_imported{};     // of engines' GPU memory that is mapped here
  Bytes gpu_own{};          // of GPU memory, kvistd's own
  Bytes gpu_pool_pinned{};  // of the pool, for GPUs
  absl::Duration uptime;
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_FIGURES_H_
