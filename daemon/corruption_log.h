#ifndef KVIST_DAEMON_CORRUPTION_LOG_H_
#define KVIST_DAEMON_CORRUPTION_LOG_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/effects.h"

namespace kvist::daemon {

// Says in the log which tier holds other bytes than were stored: at once when it is news, and then seldom, however many chunks it spoils.
//
// News: nothing was said of the tier for kQuiet. Else a line has ten times as many chunks as the one before. `kvistctl` has the count.
// Threads: one (the reactor's).
class CorruptionLog {
 public:
  static constexpr absl::Duration kQuiet = absl::Seconds(10);

  void Found(const core::CorruptionFound& found, const SpaceDigest& space, absl::Time now);

 private:
  struct OfTier {
    absl::Time said = absl::InfinitePast();
    uint64_t line = 0;    // chunks of the line that was said then
    uint64_t unsaid = 0;  // chunks since
  };
  std::array<OfTier, core::kTiers> tiers_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CORRUPTION_LOG_H_
