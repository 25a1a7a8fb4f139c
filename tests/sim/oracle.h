#ifndef KVIST_TESTS_SIM_ORACLE_H_
#define KVIST_TESTS_SIM_ORACLE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "tests/sim/memory.h"
#include "tests/sim/verdict.h"

namespace kvist::sim {

// Knows what the core must answer, from its promises alone: an independent model of sessions, leases, half stores and operations,
// simple and slow. Misses and refused stores are always allowed; everything else is predicted or checked against the bytes.
//
// Lifecycle: for each event, once the core has handled it: Judge(event, effects), before anybody acts on the effects; then, now
//   and then, Compare(core).
// Threads: one.
class Oracle {
 public:
  Oracle(core::CoreOptions options, const pool::SlotAllocator* slots, Memory* memory, Verdict* verdict);

  void Judge(const core::SessionOpened& event, const core::Effects& effects);
  void Judge(const core::SessionClosed& event, const core::Effects& effects);
  void Judge(const core::LookupAsked& event, const core::Effects& effects);
  void Judge(const core::ReleaseAsked& event, const core::Effects& effects);
  void Judge(const core::LoadAsked& event, const core::Effects& effects);
  void Judge(const core::StoreAsked& event, const core::Effects& effects);
  void Judge(const core::PinAsked& event, const core::Effects& effects);
  void Judge(const core::OperatorPinAsked& event, const core::Effects& effects);
  void Judge(const core::UnpinAsked& event, const core::Effects& effects);
  void Judge(const core::PinRemoved& event, const core::Effects& effects);
  void Judge(const core::HintAsked& event, const core::Effects& effects);
  void Judge(const core::AllocateAsked& event, const core::Effects& effects);
  void Judge(const core::FreeAsked& event, const core::Effects& effects);
  void Judge(const core::SwapAsked& event, const core::Effects& effects);
  void Judge(const core::CancelAsked& event, const core::Effects& effects);
  void Judge(const core::CopyFinished& event, const core::Effects& effects);
  void Judge(const core::ClearAsked& event, const core::Effects& effects);
  void Judge(const core::PromptClearAsked& event, const core::Effects& effects);
  void Judge(const core::MoveAsked& event, const core::Effects& effects);
  void Judge(const core::JobCancelAsked& event, const core::Effects& effects);
  void Judge(const core::SlotsCopied&, const core::Effects&) {}
  void Judge(const core::Tick& event, const core::Effects& effects);

  // The core is gone, with all that it had promised but the chunks; another has the pool's memory. Memory::NewSlots comes after.
  void NewCore();

  // Whether anything is being stored in the space: it doesn't know what becomes of that when a prompt is cleared.
  bool IsStoring(SpaceId space) const;

  // Counts of the core against the model's: more is a leak, less a loss. Exact once the core has caught up with the clock.
  void Compare(const core::Core& core);

  // The shards that an operation in flight copies, in the order of its slots.
  std::vector<ShardId> ShardsOf(OpId op) const;

  // What has happened, so that a run that proves nothing is seen.
  struct Coverage {
    uint64_t hits = 0, partial_hits = 0, misses = 0, leases = 0, leases_refused = 0, leases_expired = 0, loads = 0,
             stores = 0;
    uint64_t chunks_refused = 0, chunks_skipped = 0, stale_leases = 0, sealed = 0, fills_failed = 0, fills_expired = 0;
    uint64_t late_completions = 0, late_ok = 0, sessions_refused = 0, deaths_in_flight = 0, clears = 0, hits_after_clear = 0,
             hits_without_prefix = 0, clears_cancelled = 0, stores_lost = 0, too_many_ghosts = 0;
    uint64_t pins = 0, pins_refused = 0, pins_expired = 0, pins_cleared = 0, allocations = 0, allocations_refused = 0,
             swaps_out = 0, swaps_in = 0, swaps_refused = 0, swaps_freed_under = 0;
    uint64_t prompts_cleared = 0, hits_after_prompt_clear = 0, moves = 0;
    uint64_t new_cores = 0, chunks_kept = 0, slots_in_doubt = 0, hits_kept = 0;
  };
  const Coverage& coverage() const { return coverage_; }
  void Note(const core::Core::TakenOver& told) {
    ++coverage_.new_cores;
    coverage_.chunks_kept += told.chunks;
    coverage_.slots_in_doubt += told.in_doubt;
  }
  void NoteHitsKept(uint32_t chunks) { coverage_.hits_kept += chunks; }

 private:
  using InstanceName = std::pair<std::string, std::string>;  // tenant, name
  struct Instance {
    uint64_t id = 0;  // never reused: an instance that all its sessions have left is another one when it returns
    SpaceId space;
    uint32_t open = 0;
    Bytes leased{};       // by leases that are alive
    Bytes leased_late{};  // by those that are over, until the core has come to them
    Bytes allocated{};
  };
  struct Session {
    InstanceName name;
    uint64_t instance = 0;
    core::Role role = core::Role::kScheduler;
    Rank rank;
    SpaceId space;
    bool closed = false;
    std::set<uint64_t> ops;
  };
  struct Lease {
    InstanceName name;
    uint64_t instance = 0;
    SessionId session;
    uint32_t chunks = 0;
    Bytes bytes{};
    absl::Time deadline;
    bool expired = false;  // a load on it may still start, until the core has come to it, and is right if it does
    bool closed = false;   // its session has died: it counts until the core has come to it, and that is all
    std::vector<std::vector<std::vector<ShardId>>> shards;  // [group][chunk][shard], of those that are needed
  };
  using ChunkName = std::tuple<uint32_t, uint16_t, ChunkKey>;  // space, group, key
  using FillId = uint32_t;
  struct Fill {
    ChunkName chunk;
    uint64_t instance = 0;
    uint64_t all = 0;  // a bit per shard, as below
    uint64_t claimed = 0;
    uint64_t stored = 0;
    ShardId first = 0;     // of the rank that came first; its slot is live as long as the half store is
    uint32_t running = 0;  // copies
    absl::Time deadline;
    bool expired = false;
    bool doomed = false;                // a copy has failed: ends when quiet
    bool may_end = false;               // expired, or a rank has died: ends when quiet, once the core has come to it
    bool cleared = false;               // it need not end, but may; and the key may be stored anew meanwhile
    bool orphan = false;                // hangs on what was cleared: so may this
    bool split = false;                 // such a one, and another rank's store of the key may be of this half store, or anew
    std::set<core::JobId> clears = {};  // those that have not been cancelled: it ends when they are done, and it is quiet
    // Stored by all, and maybe given up before by the core (or detached, when cleared): it is sealed, or about to go
    bool unsure = false;
    bool ended = false;
  };
  struct Op {
    SessionId session;
    core::RequestTag tag;
    core::Direction direction = core::Direction::kLoad;
    std::vector<ShardId> shards;
    std::vector<FillId> fills;
    uint32_t asked = 0;  // chunks, of a store
    bool cancelled = false;
    uint64_t allocation = 0;  // that it swaps
    uint32_t first = 0;       // chunk of it
  };
  struct Pin {
    uint32_t chunks = 0;
    Bytes bytes{};
    uint64_t count = 0;
    absl::Time until;
    std::vector<ShardId> shards;  // of what its position needs
  };
  using PinPlace = std::pair<uint32_t, core::PinName>;  // space, name
  struct Allocation {
    InstanceName name;
    uint64_t instance = 0;
    SessionId session;
    SpaceId space;
    GroupId group;
    uint32_t chunks = 0;
    Bytes bytes{};
    struct Place {
      std::optional<SlotRef> slot;  // once a swap has shown it
      ShardId content = 0;          // that can be brought back
    };
    std::map<std::pair<uint32_t, uint32_t>, Place> places;  // (shard, chunk)
  };

  // What the position needs: its shards, and how many bytes of slots they have.
  struct PinWish {
    SpaceId space;
    std::string owner;
    std::span<const ChunkKey> keys;
    absl::Time until;
    uint64_t counts;  // pinned before: so much more
  };
  void JudgePin(const PinWish& wish, const absl::Status& status, uint32_t chunks);
  void EndExpiredPins();
  Bytes Needed(SpaceId space, std::span<const ChunkKey> keys, uint32_t position, std::vector<ShardId>* shards);
  // What pins and leases of a tenant are bounded by shares of.
  Bytes EntitledTo(const std::string& tenant) const;
  void EndPin(std::map<PinPlace, Pin>::iterator pin);
  void EndAllocation(std::map<uint64_t, Allocation>::iterator allocation);
  // Whether a copy that runs would tear, or be torn by, one of that direction.
  bool Conflicts(const core::SwapAsked& event, uint32_t shard) const;
  void SwapEnded(const Op& op, bool ok);

  bool Expect(bool holds, std::string_view promise, std::string_view detail) {
    return verdict_.Expect(holds, promise, detail);
  }
  Session* FindOpen(SessionId id);
  const core::GroupSpec& GroupOf(SpaceId space, GroupId group) const;
  // DESIGN.md section 1 in its own words, so that the core's can be wrong.
  static uint32_t FirstNeeded(const core::GroupSpec& group, uint32_t position);
  void Protect(const Lease& lease, bool on);
  void EndLease(std::map<uint64_t, Lease>::iterator lease);
  // It is over, and counts in its instance's budget at most until the core has caught up.
  void LeaseOver(Lease& lease);
  const core::CopyStarted* Started(const core::Effects& effects, SessionId session, core::RequestTag tag,
                                   core::Direction direction);
  bool Refused(const core::Effects& effects, SessionId session, core::RequestTag tag, absl::StatusCode code);
  // Checks that chunk k of a hit is whole in all shards; adds them to `shards`.
  void CheckHit(SpaceId space, GroupId group, std::span<const ChunkKey> keys, uint32_t k, std::vector<ShardId>* shards);
  // Shards of the last of `prefix` that were begun before this one were cleared; 0: none was.
  ShardId ClearedBefore(SpaceId space, GroupId group, std::span<const ChunkKey> prefix) const;
  // Whether the chunk that this store hangs on lies below one that was cleared by itself and has been stored anew since, or not: a clear
  // that is cancelled leaves it where no lookup gets to, until its place in the tree is stored again.
  bool HangsOnCleared(const Shard& shard) const;
  FillId Claim(const Session& session, const ChunkName& chunk, ShardId shard);
  void EndShard(FillId fill, ShardId shard, bool stored);
  // Whether the answer says of a store that was copied well what is kept of it.
  bool TellsTheTruth(const Op& op, const core::OpEnded& ended) const;
  // Notes that the core has ended a half store that it may end.
  void Settle(Fill& fill) const;

  const core::CoreOptions options_;
  const pool::SlotAllocator& slots_;
  const Bytes lease_budget_;  // per instance
  Memory& memory_;
  Verdict& verdict_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_instance_ = 1;
  bool behind_ = false;  // leases, allocations or half stores are over that the core may not have come to yet
  std::map<SpaceDigest, SpaceId> spaces_;
  std::map<uint32_t, core::SpaceSpec> specs_;
  std::map<uint32_t, uint64_t> clears_;  // [space]
  std::map<InstanceName, Instance> instances_;
  std::map<uint64_t, Session> sessions_;
  std::map<uint64_t, Lease> leases_;  // alive, or over and late
  std::set<uint64_t> leases_ever_;
  std::map<PinPlace, Pin> pins_;
  std::map<std::string, Bytes> pinned_;  // [tenant]
  std::map<uint64_t, Allocation> allocations_;
  std::set<uint64_t> allocations_ever_;
  std::map<uint64_t, Op> ops_;
  std::set<uint64_t> ops_ever_;
  std::vector<Fill> fills_;
  std::vector<FillId> open_fills_;  // not ended
  std::map<ChunkName, FillId> current_fill_;
  std::map<std::pair<ChunkName, uint16_t>, ShardId> newest_;  // (chunk, shard) -> the complete shard that was begun last
  // Cleared by themselves: shards that were begun before these are gone. Of chained groups by the whole prefix, for a chunk may hang elsewhere.
  std::map<std::tuple<uint32_t, uint16_t, std::vector<ChunkKey>>, ShardId> cleared_prefixes_;
  std::map<ChunkName, ShardId> cleared_chunks_;
  std::map<uint32_t, ShardId> prompt_clears_;  // [space]: shards that were begun before the last one
  std::deque<core::JobId> jobs_;               // under way
  Coverage coverage_;
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_ORACLE_H_
