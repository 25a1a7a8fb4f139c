#ifndef KVIST_DAEMON_CORE_FILLS_H_
#define KVIST_DAEMON_CORE_FILLS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "storage/base/ids.h"

namespace kvist::core {

// A chunk that is being stored by the ranks of one instance.
struct Fill {
  uint64_t serial = 0;  // never reused: tells this half store from a later one of the same chunk
  InstanceId writer;
  uint64_t all = 0;      // a bit per shard
  uint64_t claimed = 0;  // shards whose copy has started
  uint64_t stored = 0;   // shards whose copy is complete
  bool doomed = false;   // never to be sealed: ends as soon as no copy runs
  absl::Time deadline;   // half stores expire: a rank that never comes must not keep the others' slots

  bool sealed() const { return stored == all; }
};

// The half stores, by chunk. Lifecycle of one: Begin -> ranks claim and store their shards -> End (sealed, or doomed and quiet).
// Threads: one.
class Fills {
 public:
  Fill& Begin(ChunkIndex chunk, InstanceId writer, uint32_t shards, absl::Time deadline);
  Fill* Find(ChunkIndex chunk);
  void End(ChunkIndex chunk);

  // None that runs has a later deadline any more. Fills that begin afterwards must not have an earlier one.
  void Shorten(absl::Time latest);

  // Chunks that `writer` is storing, in the order of their places.
  std::vector<ChunkIndex> OfWriter(InstanceId writer) const;

  // A begun fill whose deadline is at or before `now`, each at most once; kNoChunk when there is none.
  ChunkIndex Expired(absl::Time now);

  size_t size() const { return fills_.size(); }

 private:
  struct Due {
    absl::Time deadline;
    ChunkIndex chunk;
    uint64_t serial;
  };
  bool Runs(const Due& due) const;  // its fill hasn't ended

  absl::flat_hash_map<ChunkIndex, Fill> fills_;
  absl::flat_hash_map<InstanceId, absl::btree_set<ChunkIndex>>
      by_writer_;                // ordered, so that a simulated run replays exactly
  std::deque<Due> by_deadline_;  // ascending, because all fills have the same time to live (Shorten keeps it so)
  uint64_t next_serial_ = 1;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_FILLS_H_
