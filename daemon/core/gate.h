#ifndef KVIST_DAEMON_CORE_GATE_H_
#define KVIST_DAEMON_CORE_GATE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "daemon/core/learned_cost.h"
#include "daemon/core/reads.h"

namespace kvist::core {

// Load or recompute: how far it is worth loading what lies below, by what reading has cost and what computing costs.
//
// Computing n chunks from position p on costs a * n + b * n * (p + n / 2): attention looks at all that is before. Reading costs its bytes, and
// what waits for the tier already. Both are learned (LearnedCost): from what engines of the space report, and from how long the tier was
// busy. While either is unknown all is loaded.
//
// A load goes as far as it gains most. Where all is on disk that is all or nothing, for the next chunk costs as much to read as the last one,
// and more to compute. DRAM isn't weighed: copying a chunk takes less than computing it in any engine that has reason to keep KV at all.
// Threads: one.
class Gate {
 public:
  // What a position has to wait for, from below.
  struct Waits {
    std::vector<OfTiers> to_read;  // [position] what has to be read from which tier
    uint32_t from = 0;             // the first position that has to be waited for
  };

  void Learn(const TierRead& read);
  // Of one tier at least.
  bool known() const;
  // The position up to which loading gains most: from waits.from, where nothing has to be waited for, to the last of waits.to_read. `reading`: what
  // is being read already.
  uint32_t Best(const LearnedCost& computing, const Waits& waits, OfTiers reading) const;

 private:
  std::array<LearnedCost, kTiers> reading_;  // [tier] seconds that it takes for bytes, and for beginning
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_GATE_H_
