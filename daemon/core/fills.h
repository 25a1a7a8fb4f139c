#ifndef KVIST_DAEMON_CORE_FILLS_H_
#define KVIST_DAEMON_CORE_FILLS_H_

#include <cstdint>
#include <deque>

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

  // The first chunk at or after the place `from` that `writer` is storing; kNoChunk when there is none.
  ChunkIndex NextOf(InstanceId writer, ChunkIndex from) const;
  // Fills that begin from now on have this serial or a higher one.
  uint64_t next_serial() const { return next_serial_; }

  // Whether a deadline at or before `now` waits to be taken, of a fill that runs or has ended.
  bool Due(absl::Time now) const { return !by_deadline_.empty() && by_deadline_.front().deadline <= now; }
  // Takes the one that is first: its chunk, or kNoChunk when the fill has ended.
  ChunkIndex TakeDue();

  size_t size() const { return fills_.size(); }

 private:
  struct Deadline {
    absl::Time deadline;
    ChunkIndex chunk;
    uint64_t serial;
  };
  bool Runs(const Deadline& due) const;  // its fill hasn't ended

  absl::flat_hash_map<ChunkIndex, Fill> fills_;
  absl::flat_hash_map<InstanceId, absl::btree_set<ChunkIndex>>
      by_writer_;                     // ordered, so that a simulated run replays exactly
  std::deque<Deadline> by_deadline_;  // ascending, because all fills have the same time to live (Shorten keeps it so)
  uint64_t next_serial_ = 1;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_FILLS_H_
