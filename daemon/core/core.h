#ifndef KVIST_DAEMON_CORE_CORE_H_
#define KVIST_DAEMON_CORE_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/allocations.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "daemon/core/fills.h"
#include "daemon/core/handle_table.h"
#include "daemon/core/jobs.h"
#include "daemon/core/leases.h"
#include "daemon/core/pins.h"
#include "daemon/core/placement.h"
#include "daemon/core/sessions.h"
#include "daemon/core/spaces.h"
#include "daemon/core/tenants.h"
#include "daemon/core/usable_position.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

struct CoreOptions {
  // A lease lasts at most so long. Longer: an engine that forgets to release keeps memory longer.
  absl::Duration lease_max = absl::Seconds(60);
  // A chunk that not all ranks have stored goes after so long. Longer: slots of a lost rank's chunks return later.
  absl::Duration fill_timeout = absl::Seconds(30);
  // What one instance's leases may keep, as a share of the pool. Larger: one engine can keep others from storing.
  double lease_share = 0.5;
  // What one instance's private allocations may take, as a share of the pool, and a tenant's as a share of its quota. Larger: a preempting engine can empty others' caches more.
  double private_share = 0.25;
  // What one tenant's pins may keep, as a share of its quota. Larger: less room for what isn't pinned.
  double pin_share = 0.5;
  // Chunks that one Tick clears or reaps. Larger: clears are faster, requests behind them wait longer (about 0.2 us a chunk).
  uint32_t slice_chunks = 128;
  // Tenant -> the most bytes of slots it may use. Those that aren't named may use the whole pool, and give way as Tenants says.
  std::map<std::string, Bytes> quotas;
  // Seeds the index's hash; random in a daemon, fixed in a simulation.
  uint64_t seed = 0;

  absl::Status Validate() const;  // names the field
};

// What `kvistctl status` shows of the core.
struct CoreStatus {
  struct SpaceRow {
    SpaceDigest digest;
    std::string tenant;
    std::string model;
    uint64_t chunks = 0;  // sealed
    Bytes bytes{};        // of slots, sealed and filling
    Bytes chunk_bytes{};  // of slots of one chunk, of the group where that is most
  };
  struct TenantRow {
    std::string name;
    Bytes quota{};  // in force: the pool's capacity when it has none, or a larger one
    Bytes used{};
    uint64_t evictions = 0;
  };
  std::vector<SpaceRow> spaces;
  std::vector<TenantRow> tenants;                     // that have come
  std::vector<std::pair<std::string, Bytes>> quotas;  // that are set, as they were given
  uint64_t chunks = 0;                                // places in use, of any state
  uint64_t sealed = 0;
  uint64_t filling = 0;
  uint64_t leases = 0;
  uint64_t pins = 0;
  uint64_t allocations = 0;
  Bytes private_bytes{};  // of slots
  uint64_t ops = 0;
  uint64_t sessions = 0;
  uint64_t instances = 0;
  uint64_t evictions = 0;  // since the start, as are the counts below
  uint64_t lookups = 0;
  uint64_t lookup_chunks_asked = 0;
  uint64_t lookup_chunks_hit = 0;
  uint64_t chunks_stored = 0;
  uint64_t chunks_loaded = 0;
  uint64_t stores_refused = 0;  // chunks: no room
  uint64_t chunks_corrupt = 0;  // dropped, because they held other bytes than were stored
  Bytes index_bytes{};
};

// One pin.
struct PinRow {
  uint64_t number = 0;  // names it while the daemon lives
  SpaceId space;
  PinName name;
  uint32_t chunks = 0;  // that are kept, from the first on
  Bytes bytes{};
  uint64_t count = 0;
  absl::Duration age;
};

struct PinPage {
  std::vector<PinRow> rows;
  uint64_t next = 0;  // ask for the rest after this number; 0: there is none
};

// The heart: index, leases, placement, eviction, sealing. An event comes in, effects go out, in the order in which drivers must carry
// them out.
//
// It never blocks, reads no clock (Tick brings it) and does no I/O; so it needs no locks, and tests/sim can drive it from a seed.
// Every event does work bounded by the chunks it names; what may be longer (clear, the remains of a dead instance) goes on in Ticks.
//
// Promises, checked by tests/sim after every step:
//   - a lookup answers only chunks whose shards were all copied completely (publication after completion);
//   - a slot is never given to a chunk while a copy reads or writes it (holds), whatever happens to leases, sessions or spaces;
//   - a stale handle is refused; a dead session leaves nothing; a failed store leaves nothing visible.
// Threads: one.
class Core {
 public:
  // The most keys one request may name; drivers refuse more before they get here. About a million tokens in chunks of 256.
  static constexpr uint32_t kKeysMax = 4096;

  Core(CoreOptions options, pool::SlotAllocator* slots);

  void Handle(const SessionOpened& event, Effects* out);
  void Handle(const SessionClosed& event, Effects* out);
  void Handle(const LookupAsked& event, Effects* out);
  void Handle(const ReleaseAsked& event, Effects* out);
  void Handle(const LoadAsked& event, Effects* out);
  void Handle(const StoreAsked& event, Effects* out);
  void Handle(const PinAsked& event, Effects* out);
  void Handle(const UnpinAsked& event, Effects* out);
  void Handle(const PinRemoved& event, Effects* out);
  void Handle(const HintAsked& event, Effects* out);
  void Handle(const AllocateAsked& event, Effects* out);
  void Handle(const FreeAsked& event, Effects* out);
  void Handle(const SwapAsked& event, Effects* out);
  void Handle(const CancelAsked& event, Effects* out);
  void Handle(const CopyFinished& event, Effects* out);
  void Handle(const ClearAsked& event, Effects* out);
  void Handle(const QuotaSet& event, Effects* out);
  void Handle(const JobCancelAsked& event, Effects* out);
  void Handle(const Tick& event, Effects* out);

  // Takes lease_max and the shares over from valid options, for leases, pins and allocations from now on, and fill_timeout, which half stores that there
  // are don't outlive either. The rest stays as it was.
  void Retune(const CoreOptions& options);

  // Whether there is long work that a Tick would go on with right now.
  bool has_work() const { return jobs_.busy() || !reap_.empty() || !cleared_pins_.empty() || !placement_.rest().empty(); }
  // Whether time alone may bring work: leases or half stores that will expire.
  bool waits_for_clock() const { return leases_.size() > 0 || fills_.size() > 0; }

  CoreStatus status() const;
  CoreStatus::SpaceRow space(SpaceId id) const;  // one that was met
  std::vector<PinRow> pins() const;              // all
  // Those whose numbers are above `number`, the lowest first: of the next `looks` numbers, some of which may have been cleared lately.
  PinPage PinsAfter(uint64_t number, size_t looks) const;
  const Jobs& jobs() const { return jobs_; }
  // Recomputes every count and relation from scratch and stops the process when one is wrong. For tests: O(everything).
  void CheckInvariants();

 private:
  struct Op {
    SessionId session;
    RequestTag tag;
    Direction direction = Direction::kLoad;
    std::vector<ChunkIndex>
        chunks;           // store: those being filled; load: each, or in a chained group the deepest, which keeps the others
    uint32_t copied = 0;  // if it ends well
    uint32_t skipped = 0;
    uint32_t refused = 0;
    AllocationId allocation = {};  // that it swaps, or none
  };
  enum class Claim { kCopy, kSkip, kRefuse };

  // Finds or makes the chunk of `key` under `parent` and claims the session's shard of it. Sets *chunk.
  Claim ClaimShard(const Session& session, GroupId group, const ChunkKey& key, ChunkIndex parent, ChunkIndex* chunk);
  // The visible or filling chunk of `key`; one that a clear has left behind, or whose parent was dropped, is detached and not found.
  ChunkIndex FindCurrent(SpaceId space, GroupId group, const ChunkKey& key);
  // How many chunks it has removed.
  uint32_t Detach(ChunkIndex chunk);
  // Goes on with a clear until about `budget` places were looked at or chunks removed; how many were.
  uint32_t Clear(Job* job, uint32_t budget);
  OpId Start(Op op, std::vector<SlotRef> slots, std::vector<uint32_t> chunk_of, Effects* out);
  void FinishShard(ChunkIndex chunk, Rank rank, bool stored);
  // What a lease on the position that usable_ has found keeps; the rest of it is the caller's.
  Lease LeaseOn(const Session& session, uint32_t position) const;
  // How many chunks of a load, those of its `slots`, were dropped now.
  uint32_t DropCorrupt(const Op& op, std::span<const uint32_t> slots);
  void Keep(std::span<const ChunkIndex> chunks);
  void KeepNoLonger(std::span<const ChunkIndex> chunks);
  PinRow RowOf(SpaceId space, const Pins::Named& named) const;
  void Doom(ChunkIndex chunk);
  void Abandon(ChunkIndex chunk);
  void EndLease(LeaseId lease);
  void EndAllocation(AllocationId allocation);
  void SwapEnded(const Op& op, OpId id, bool ok);
  Bytes PinBudget(TenantId tenant) const;
  // A use of the chunk has ended (a lease, a copy, a store that passed it): it was used last now, or goes if it was only waiting.
  void UseEnded(ChunkIndex chunk);
  void Use(ChunkIndex chunk);

  CoreOptions options_;
  pool::SlotAllocator& slots_;
  absl::Time now_ = absl::UnixEpoch();
  Spaces spaces_;
  ChunkTable chunks_;
  Tenants tenants_;
  Placement placement_;
  Fills fills_;
  Leases leases_;
  Pins pins_;
  Allocations allocations_;
  Bytes private_bytes_{};  // of all allocations' slots
  Sessions sessions_;
  HandleTable<OpId, Op> ops_;
  Jobs jobs_;
  std::deque<Pins::OfSpace> cleared_pins_;            // to be ended in slices
  std::deque<std::pair<ChunkIndex, uint64_t>> reap_;  // half stores (chunk, serial) of dead ranks
  UsablePosition usable_;                             // of the lookup that is being answered
  CoreStatus counters_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CORE_H_
