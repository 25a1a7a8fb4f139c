#ifndef KVIST_DAEMON_CTL_TOP_VIEW_H_
#define KVIST_DAEMON_CTL_TOP_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/node.pb.h"

namespace kvist::ctl {

// What a daemon said at one moment.
struct TopSample {
  node::v1::StatusReply status;
  node::v1::SessionsReply sessions;
};

// What it did between two moments, by the second.
struct TopView {
  struct Rates {
    double lookups = 0;
    double chunks_asked = 0;
    double chunks_hit = 0;
    double bytes_loaded = 0;
    double bytes_stored = 0;
    double failed = 0;

    double bytes() const { return bytes_loaded + bytes_stored; }
  };
  struct Latency {
    std::string name;
    uint64_t count = 0;  // since its start
    double per_second = 0;
    double p50_seconds = 0;  // 0 when there was none
    double p99_seconds = 0;
  };
  struct SpaceRow {
    node::v1::StatusReply::Space space;
    Rates rates;
  };
  struct SessionRow {
    node::v1::SessionsReply::Session session;
    Rates rates;
  };
  double seconds = 0;  // between the two
  node::v1::StatusReply now;
  Rates rates;
  double evictions = 0;
  std::vector<Latency> latencies;    // of hooks
  std::vector<Latency> waits;        // in queues
  std::vector<SpaceRow> spaces;      // the busiest first: by bytes, lookups, then what they hold
  std::vector<SessionRow> sessions;  // the busiest first: by bytes, lookups, then their number
};

// From `before` to `now`; from its start when the daemon isn't the one that said `before`.
TopView ViewTop(const TopSample& before, const TopSample& now);

// One object in one line, numbers as numbers.
std::string ToJson(const TopView& view);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TOP_VIEW_H_
