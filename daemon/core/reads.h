#ifndef KVIST_DAEMON_CORE_READS_H_
#define KVIST_DAEMON_CORE_READS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "storage/base/check.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

// Reads from tiers below, from the wish to the copies that waited for them: they are queued, they wait for slots (ReadQueue), they run (Reads),
// and operations that need them hear that they have begun (WaitingOps). Threads: one.
namespace kvist::core {

using OfTiers = std::array<Bytes, kTiers>;  // [tier]

// Who waits for slots to read into: leases some of whose chunks are below (Lease::to_read, the deepest last, which is read first, so that each
// is kept by the one below it), in the order in which they came; and single chunks whose lease has ended, but not the load that waits for them.
// Each operation is O(log n).
class ReadQueue {
 public:
  struct Orphan {
    ChunkRef chunk;
    bool by_layer;  // it is waited for so
  };

  // Its turn, by which it leaves; no turn is 0.
  uint64_t Add(LeaseId lease) {
    leases_.emplace(next_, lease);
    return next_++;
  }
  void Leave(uint64_t turn) { leases_.erase(turn); }
  // The turn that comes next after `turn`; 0: there is none.
  uint64_t After(uint64_t turn) const {
    const auto next = leases_.upper_bound(turn);
    return next == leases_.end() ? 0 : next->first;
  }
  LeaseId LeaseOf(uint64_t turn) const { return leases_.at(turn); }

  void Add(Orphan orphan) { orphans_.push_back(orphan); }
  size_t orphans() const { return orphans_.size(); }
  Orphan TakeOrphan() {
    const Orphan first = orphans_.front();
    orphans_.pop_front();
    return first;
  }

  bool empty() const { return leases_.empty() && orphans_.empty(); }

 private:
  absl::btree_map<uint64_t, LeaseId> leases_;  // [turn]
  uint64_t next_ = 1;
  std::deque<Orphan> orphans_;
};

// Chunks that are being read. Each operation is O(1).
class Reads {
 public:
  void Begin(ChunkIndex chunk, Tier from, Bytes bytes) {
    KVIST_CHECK(chunks_.insert(chunk).second);
    bytes_[static_cast<size_t>(from)] += bytes;
  }
  void End(ChunkIndex chunk, Tier from, Bytes bytes) {
    KVIST_CHECK(chunks_.erase(chunk) == 1);
    bytes_[static_cast<size_t>(from)] -= bytes;
  }
  bool Has(ChunkIndex chunk) const { return chunks_.contains(chunk); }
  bool empty() const { return chunks_.empty(); }
  size_t size() const { return chunks_.size(); }
  const OfTiers& bytes() const { return bytes_; }  // of their slots
  Bytes bytes(Tier from) const { return bytes_[static_cast<size_t>(from)]; }
  const absl::flat_hash_set<ChunkIndex>& chunks() const { return chunks_; }  // for invariants

 private:
  absl::flat_hash_set<ChunkIndex> chunks_;
  OfTiers bytes_{};
};

// Operations that wait until the reads of their chunks have begun, and have slots by then; and the reads that have begun and whose operations
// don't know it yet. Each operation is O(log n).
class WaitingOps {
 public:
  void Add(ChunkIndex chunk, OpId op) { waiting_.emplace(chunk, op.Pack()); }
  void Remove(ChunkIndex chunk, OpId op) { waiting_.erase({chunk, op.Pack()}); }
  bool Has(ChunkIndex chunk) const {
    const auto first = waiting_.lower_bound({chunk, 0});
    return first != waiting_.end() && first->first == chunk;
  }
  // One that waits for the chunk, and does no longer.
  OpId Take(ChunkIndex chunk) {
    const auto first = waiting_.lower_bound({chunk, 0});
    KVIST_CHECK(first != waiting_.end() && first->first == chunk);
    const OpId op = OpId::Unpack(first->second);
    waiting_.erase(first);
    return op;
  }

  // The chunk's read has begun.
  void Begun(ChunkRef chunk) {
    if (Has(chunk.index)) begun_.push_back(chunk);
  }
  bool has_begun() const { return !begun_.empty(); }
  ChunkRef first_begun() const { return begun_.front(); }
  void DropFirstBegun() { begun_.pop_front(); }

  // For invariants.
  const std::deque<ChunkRef>& begun() const { return begun_; }
  const absl::btree_set<std::pair<ChunkIndex, uint64_t>>& all() const { return waiting_; }  // (chunk, OpId::Pack)

 private:
  absl::btree_set<std::pair<ChunkIndex, uint64_t>> waiting_;
  std::deque<ChunkRef> begun_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_READS_H_
