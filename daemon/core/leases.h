#ifndef KVIST_DAEMON_CORE_LEASES_H_
#define KVIST_DAEMON_CORE_LEASES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/owned_table.h"
#include "storage/base/reuse_rule.h"
#include "storage/base/units.h"

namespace kvist::core {

// An instance's revocable right that what a position needs stays. In a chained group it counts on the deepest chunk only: a chunk with
// children is never evicted, so that protects the whole prefix, and taking a lease costs the same for one chunk and for a thousand. Only
// where chunks of the path aren't in slots do the ends of what is there count, too.
struct Lease {
  InstanceId instance;
  SessionId session;    // that asked for it; the lease ends with it
  uint32_t chunks = 0;  // the position
  uint32_t have = 0;    // the first so many chunks are of no concern to it
  Bytes bytes{};        // what it counts in the instance's budget: all its chunks, shared or not
  absl::Time deadline;
  // Group by group, in order: of a chained one the deepest chunk, and before it those that have no child in slots on the path, which could
  // go else; of another each needed one.
  absl::InlinedVector<ChunkIndex, 1> kept;
  // Chunks on disk that are to be read for it, from the back on, and its turn among those who wait.
  std::vector<ChunkIndex> to_read;
  uint64_t read_turn = 0;
  bool by_layer = false;                      // how they are read
  absl::InlinedVector<uint32_t, 1> kept_end;  // [group] where its part of `kept` ends

  // The first chunk of a group that it is for.
  uint32_t FirstOf(const ReuseRule& reuse) const { return std::max(reuse.FirstNeeded(chunks), have); }
  std::span<const ChunkIndex> kept_of(GroupId group) const {
    const uint32_t begin = group.value == 0 ? 0 : kept_end[group.value - 1u];
    return std::span(kept).subspan(begin, kept_end[group.value] - begin);
  }
};

// Lifecycle of a lease: Grant -> alive, until its session is closed -> End, once (released, expired, or its session closed).
// Threads: one.
class Leases {
 public:
  Leases(Bytes budget, uint32_t first_generation) : leases_(budget, kLeasesPerSession, first_generation) {}

  // A new lease, or none when it would take its instance past the budget or its session past kLeasesPerSession.
  LeaseId Grant(Lease lease);
  void SetBudget(Bytes budget) { leases_.SetBudget(budget); }
  // The lease if it is alive and belongs to `instance`.
  Lease* Find(LeaseId id, InstanceId instance) { return leases_.Find(id, instance); }
  Lease End(LeaseId id);

  void Close(SessionId session) { leases_.Close(session); }
  LeaseId OfClosed() const { return leases_.OfClosed(); }
  // One that hasn't ended, whosever it is.
  Lease& operator[](LeaseId id) { return leases_[id]; }
  // A lease whose deadline is at or before `now`; none when there is none.
  LeaseId Expired(absl::Time now) const;

  size_t size() const { return leases_.size(); }
  Bytes used(InstanceId instance) const { return leases_.used(instance); }
  // Calls f(LeaseId, const Lease&) for all; for invariant checks and status.
  template <class F>
  void ForEach(F f) {
    leases_.ForEach(f);
  }

  static constexpr size_t kLeasesPerSession = 4096;

 private:
  OwnedTable<LeaseId, Lease> leases_;
  absl::btree_set<std::pair<absl::Time, uint64_t>> by_deadline_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_LEASES_H_
