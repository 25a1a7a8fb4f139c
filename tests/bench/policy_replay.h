#ifndef KVIST_TESTS_BENCH_POLICY_REPLAY_H_
#define KVIST_TESTS_BENCH_POLICY_REPLAY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/core/eviction_policy.h"
#include "daemon/core/hint.h"

namespace kvist::bench {

// What a policy is asked for: a prompt as a path in the tree of prefixes, and what its engine knows when it stores it.
struct PolicyRequest {
  std::vector<uint64_t> blocks;
  core::StopReason stop = core::StopReason::kUnknown;  // as the C ABI has it: kvist_stop_reason
};

struct PolicyOutcome {
  uint64_t blocks = 0;        // asked for
  uint64_t hits = 0;          // of them leading ones that were there on arrival
  uint64_t refused = 0;       // not stored for want of room
  double seconds = 0;         // in the core, for all of it
  uint64_t memory_bytes = 0;  // of the index and the policy
  uint64_t writes = 0;        // blocks to the disk, those written again among them
  uint64_t rewrites = 0;

  double hit_percent() const { return 100.0 * static_cast<double>(hits) / static_cast<double>(blocks); }
  double nanos_per_block() const { return seconds * 1e9 / static_cast<double>(blocks); }
};

// How often the daemon ends cleanly meanwhile and begins anew, with what is on its disk and nothing else; and whether it knows when that was used.
struct Restarts {
  uint32_t count = 0;
  bool told_of_uses = true;
};

// Replays requests through a real core whose slots have no memory and whose copies end at once: a lookup with a lease, a store of what
// wasn't hit, the hint if there is one, and the lease's end. Room for `capacity` blocks, and for `disk` more on a disk without bytes
// (log_disk.h) that is as quick; 0: there is none. Each request comes `copies` times in a
// row, each time from another world whose blocks are others: so that an index of any size can be had from one trace.
PolicyOutcome ReplayPolicy(std::span<const PolicyRequest> requests, uint64_t capacity, core::Eviction eviction,
                           uint32_t copies = 1, uint64_t disk = 0, Restarts restarts = {});

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_POLICY_REPLAY_H_
