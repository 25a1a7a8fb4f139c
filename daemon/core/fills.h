#ifndef KVIST_DAEMON_CORE_FILLS_H_
#define KVIST_DAEMON_CORE_FILLS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "storage/base/ids.h"

namespace kvist::core {

// A chunk that is being stored by the ranks of one instance.
struct Fill {
  InstanceId writer;
  uint64_t all = 0;      // a bit per rank
  uint64_t claimed = 0;  // ranks whose copy has started
  uint64_t stored = 0;   // ranks whose copy is complete
  bool doomed = false;   // never to be sealed: ends as soon as no copy runs
  absl::Time deadline;   // half stores expire: a rank that never comes must not keep the others' slots

  bool sealed() const { return stored == all; }
};

// The half stores, by chunk. Lifecycle of one: Begin -> ranks claim and store -> End (sealed, or doomed and quiet).
// Threads: one.
class Fills {
 public:
  Fill& Begin(ChunkIndex chunk, uint32_t generation, InstanceId writer, uint32_t ranks, absl::Time deadline);
  Fill* Find(ChunkIndex chunk);
  void End(ChunkIndex chunk);

  // Chunks that `writer` is storing.
  std::vector<ChunkIndex> OfWriter(InstanceId writer) const;

  // A begun fill whose deadline is at or before `now`, each at most once; kNoChunk when there is none. `generation_of(chunk)`
  // tells whether the place still is the same chunk.
  template <class F>
  ChunkIndex Expired(absl::Time now, F generation_of) {
    while (!by_deadline_.empty() && by_deadline_.front().deadline <= now) {
      const Due due = by_deadline_.front();
      by_deadline_.pop_front();
      if (generation_of(due.chunk) == due.generation && fills_.contains(due.chunk) && fills_[due.chunk].deadline == due.deadline) return due.chunk;
    }
    return kNoChunk;
  }

  size_t size() const { return fills_.size(); }
  template <class F>
  void ForEach(F f) const {
    for (const auto& [chunk, fill] : fills_) f(chunk, fill);
  }

 private:
  struct Due {
    absl::Time deadline;
    ChunkIndex chunk;
    uint32_t generation;
  };
  absl::flat_hash_map<ChunkIndex, Fill> fills_;
  absl::flat_hash_map<InstanceId, absl::flat_hash_set<ChunkIndex>> by_writer_;
  std::deque<Due> by_deadline_;  // ascending, because all fills have the same time to live
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_FILLS_H_
