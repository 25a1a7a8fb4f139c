#ifndef KVIST_DAEMON_CORE_CORE_H_
#define KVIST_DAEMON_CORE_CORE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/allocations.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/disk_ages.h"
#include "daemon/core/events.h"
#include "daemon/core/eviction_policy.h"
#include "daemon/core/fills.h"
#include "daemon/core/handle_table.h"
#include "daemon/core/jobs.h"
#include "daemon/core/learned_cost.h"
#include "daemon/core/leases.h"
#include "daemon/core/pins.h"
#include "daemon/core/placement.h"
#include "daemon/core/prompt_jobs.h"
#include "daemon/core/sessions.h"
#include "daemon/core/spaces.h"
#include "daemon/core/tenants.h"
#include "daemon/core/usable_position.h"
#include "storage/pool/sections.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

class LeftIndex;

struct CoreOptions {
  // A lease lasts at most so long. Longer: an engine that forgets to release keeps memory longer.
  absl::Duration lease_max = absl::Seconds(60);
  // A chunk that not all ranks have stored goes after so long. Longer: slots of a lost rank's chunks return later.
  absl::Duration fill_timeout = absl::Seconds(30);
  // Slots that a core before this one was filling when it ended rest so long (TakeOver). Longer: they return later; shorter than the time that
  // Linux gives a disk for one request before it resets it (30 s for NVMe and SCSI): what still comes may hit another chunk's bytes.
  absl::Duration doubt = absl::Seconds(60);
  // What one instance's leases may keep, as a share of the pool. Larger: one engine can keep others from storing.
  double lease_share = 0.5;
  // What one instance's private allocations may take, as a share of the pool, and a tenant's as a share of what it is entitled
  // to (Tenants::EntitledTo). Larger: a preempting engine can empty others' caches more.
  double private_share = 0.25;
  // What one tenant's pins may keep, as a share of what it is entitled to. Larger: less room for what isn't pinned.
  double pin_share = 0.5;
  // What one Tick does of long work (Core::work): clearing, reaping, ending what dead sessions held. Larger: that is faster,
  // requests behind it wait longer (10 to 100 ns each).
  uint32_t slice_work = 512;
  // What another event does before it refuses the rest or leaves it to Ticks; it comes to at most EventWorkBound. Larger: larger
  // requests are served whole in hybrid spaces and of many ranks, and others wait longer behind the largest.
  uint32_t event_work = 16384;
  static constexpr uint32_t kEventWorkMin = 16;
  // Of a tenant: chunks without bytes that stand for their keys because others hang on them (stores that failed). Larger: more
  // memory (100 bytes each).
  uint32_t ghosts_max = 65536;
  // Which chunks go when room is needed (eviction_policy.h).
  Eviction eviction = Eviction::kLhd;
  // Tenant -> the most bytes of slots it may use. Those that aren't named may use the whole pool, and give way as Tenants says.
  std::map<std::string, Bytes> quotas;
  // A disk below the slots; absent: there is none. What is said in bytes is of slots.
  struct Disk {
    // What each tenant has at hand in slots that are free or on disk, too, so that stores needn't wait or drop what isn't written.
    // Larger: bursts of stores lose less, and more is written that would have been used again before its turn came.
    Bytes reserve = MiB(256);
    // What is being written at a time. Larger: deeper queues; more slots can't be evicted meanwhile.
    Bytes writing = MiB(64);
    // And in chunks: half of what the tier's store takes at a time, whatever their size.
    uint32_t writes = 2048;
    // How much the disk holds, in slots: by this core tells what was used lately (DiskAges).
    Bytes capacity = GiB(16);
  };
  std::optional<Disk> disk = {};
  // A store beyond the node, which others may read and write, too; absent: there is none.
  struct Remote {
    // What is being written at a time, in bytes of slots. Larger: more of the pool is bound to a slow store.
    Bytes writing = MiB(64);
    // Chunks that wait to be written; those beyond aren't. Larger: bursts lose less, and what is written late may be evicted by then.
    uint32_t queue = 16384;
    // When it hasn't answered in time it isn't asked for so long. Longer: a slow store costs less, and is missed longer.
    absl::Duration pause = absl::Seconds(1);
    // So long a job that goes on after a restart waits for it to be reachable. Longer: others wait behind such a job while the store is away.
    absl::Duration awaited = absl::Seconds(30);
  };
  std::optional<Remote> remote = {};
  bool below() const { return disk.has_value() || remote.has_value(); }
  uint8_t tiers_below() const {  // TierBit of each
    return static_cast<uint8_t>((disk.has_value() ? TierBit(Tier::kSsd) : 0) |
                                (remote.has_value() ? TierBit(Tier::kRemote) : 0));
  }
  // What is below is left alone where the engine, by what it reports, computes it sooner than it would be read. Off: it is always read.
  bool gate = true;
  // Seeds the index's hash; random in a daemon, fixed in a simulation.
  uint64_t seed = 0;

  // What no event exceeds, in Core::work(): what it may do, what it names all the same (kKeysMax chunks, twice), the last step, and one of
  // emptying a slab. For any event from an event_work of 2 * kKeysMax on; the default is twice that. Only tests set less (down to 16): there an event that
  // names more, such as a clear of 4,096 keys with a remote store, exceeds it.
  uint64_t EventWorkBound() const { return 2 * uint64_t{event_work} + 512 + Vacating::kWorkMax; }

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
  uint64_t slots_in_doubt = 0;  // that rest after a core before this one (TakeOver)
  uint64_t leases = 0;
  uint64_t pins = 0;
  uint64_t allocations = 0;
  Bytes private_bytes{};  // of slots, also of allocations that were freed under copies
  uint64_t ops = 0;
  uint64_t sessions = 0;
  uint64_t instances = 0;
  uint64_t evictions = 0;    // since the start, as are the counts below
  uint64_t slots_moved = 0;  // so that slabs were emptied for slots of another size (Vacating)
  uint64_t slabs_emptied = 0;
  uint64_t lookups = 0;
  uint64_t lookup_chunks_asked = 0;
  uint64_t lookup_chunks_hit = 0;
  uint64_t chunks_stored = 0;
  uint64_t chunks_loaded = 0;
  uint64_t stores_refused = 0;     // chunks: no room
  uint64_t chunks_corrupt = 0;     // dropped, because their slots held other bytes than were stored
  uint64_t loads_waited = 0;       // chunks that were still being read from below when they were to be loaded
  uint64_t chunks_recomputed = 0;  // that were there, below, but are computed sooner than read (gate.cc)
  uint64_t below = 0;              // chunks that are in no slots
  uint64_t chunks_written = 0;     // since the start, as are those below
  uint64_t chunks_read = 0;
  uint64_t writes_failed = 0;
  uint64_t reads_failed = 0;
  uint64_t chunks_corrupt_on_disk =
      0;                          // what lay there was something else: some reads that failed, and what scrubbing found
  uint64_t chunks_moved = 0;      // written again, because their segment was to be used again
  uint64_t chunks_reclaimed = 0;  // given up for that
  uint64_t chunks_found = 0;      // at the start
  uint64_t demotions = 0;         // of the evictions: chunks that are on disk since
  // Of the remote store, since the start but for `remote_waiting`.
  uint64_t remote_asked = 0;         // lookups that it was asked for
  uint64_t remote_unanswered = 0;    // of those: that went on without its answer
  uint64_t remote_chunks_found = 0;  // that weren't known here
  uint64_t remote_chunks_read = 0;
  uint64_t remote_reads_failed = 0;
  uint64_t remote_chunks_missing = 0;  // of those: the store said that it had them, and hadn't
  uint64_t remote_chunks_corrupt = 0;  // and what was there was something else
  uint64_t remote_chunks_written = 0;
  uint64_t remote_writes_failed = 0;
  uint64_t remote_chunks_dropped = 0;  // not written: too many waited, or evicted before their turn
  uint64_t remote_waiting = 0;         // chunks, to be written
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
  absl::Duration lasts;  // until it ends by itself; infinite: it doesn't
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
  // The most chunks or places one event of the disk's may name.
  static constexpr uint32_t kPlacesMax = 256;

  // Its index lies in `sections`, which must outlive it; nullptr: it ends with the core.
  Core(CoreOptions options, pool::SlotAllocator* slots, pool::Sections* sections = nullptr);

  // Goes on with slots whose memory has outlived another core, in the same places, for the chunks that `left` says were whole in them.
  // spaces[i]: the space of left.spaces()[i] here, or none when it can't be served. Before the first session and ChunksFound. Slots that
  // somebody was writing to when that core ended rest for CoreOptions::doubt, for who has begun a write may still end it: a disk's reaches memory when its
  // process is gone, too. Cost: some microseconds a chunk.
  struct TakenOver {
    uint64_t chunks = 0;
    Bytes bytes{};
    uint64_t in_doubt = 0;  // slots
  };
  TakenOver TakeOver(const LeftIndex& left, std::span<const std::optional<SpaceId>> spaces);

  // Handles any event of events.h.
  template <class Event>
  void Handle(const Event& event, Effects* out) {
    placement_.SpendUntil(chunks_.work() + options_.event_work, now_);
    job_waits_ = job_waits_ && std::is_same_v<Event, Tick>;
    On(event, out);
    if (placement_.vacates()) GoOnVacating(out);
    if (options_.below()) ServeBelow(out);
    if (placement_.HasChanged()) out->push_back(placement_.TakeChanged());
  }

  // Takes lease_max and the shares over from valid options, for leases, pins and allocations from now on, and fill_timeout, which
  // half stores that there are don't outlive either. The rest stays as it was.
  void Retune(const CoreOptions& options);

  // How many keys one HintAsked of the session may name: drivers say more in several.
  uint32_t HintKeysMax(SessionId session);

  // How many keys one PromptClearAsked of the space, which was met, may name.
  uint32_t ClearKeysMax(SpaceId space) const;

  // What all events so far have cost, in chunks looked at or changed and slots given or taken (ChunkTable::Charge). Each is 10 to
  // 100 ns, by what it is and where its memory lies (measured, ns: lookups 11, hints 13 to 40, clears 28, stores 80; AMD EPYC, a
  // busy host).
  uint64_t work() const { return chunks_.work(); }
  // Whether there is long work that a Tick would go on with right now.
  bool has_work() const {
    return JobWork() || !let_go_.empty() || !given_up_.empty() || leases_.OfClosed() || allocations_.OfClosed() ||
           leases_.Expired(now_) || fills_.Due(now_) || pins_.Due(now_) || !reap_.empty() || !quiet_.empty() ||
           !cleared_pins_.empty() || placement_.vacates() || placement_.MakesRoom() ||
           (tier_clears_ == 0 && !came_.empty()) || !placement_.rest().empty() || !begun_reads_.empty() ||
           (placement_.in_doubt() > 0 && now_ >= doubt_until_.value_or(now_)) || (more_reads_ && WaitsForSlots()) ||
           CanFlush() || CanWriteRemote() || cleared_next_ < cleared_end_ || !unforgotten_.empty() ||
           std::any_of(prompt_jobs_.begin(), prompt_jobs_.end(),
                       [this](const auto& job) { return MayForgetAgain(job.second); });
  }
  // Whether time alone may bring work: leases, half stores or pins that will expire, a job that has waited long enough, slabs that were emptied
  // for somebody and may be had by who waits for slots.
  bool waits_for_clock() const {
    return leases_.size() > 0 || fills_.size() > 0 || placement_.in_doubt() > 0 || pins_.expires() || AwaitsRemote() ||
           WaitsForSlots() || placement_.vacating().busy() ||
           std::any_of(prompt_jobs_.begin(), prompt_jobs_.end(),
                       [this](const auto& job) { return reachable_ && !job.second.again.empty(); });
  }

  const CoreOptions& options() const { return options_; }
  CoreStatus status() const;
  CoreStatus::SpaceRow space(SpaceId id) const;       // one that was met
  uint32_t spaces() const { return spaces_.size(); }  // that were met, numbered from 0
  const SpaceSpec& spec(SpaceId id) const { return spaces_[id].spec; }
  std::optional<SpaceId> FindSpace(const SpaceDigest& digest) const { return spaces_.Find(digest); }
  const std::vector<Bytes>& SlotBytes(SpaceId space, GroupId group) const {  // [shard]
    return spaces_[space].spec.groups[group.value].slot_bytes;
  }
  std::vector<PinRow> pins() const;  // all
  std::optional<PinRow> FindPin(SpaceId space, const PinName& name);
  // Those whose numbers are above `number`, the lowest first: of the next `looks` numbers, some of which may have been cleared lately.
  PinPage PinsAfter(uint64_t number, size_t looks) const;
  const Jobs& jobs() const { return jobs_; }
  // Lists a job that an earlier core has ended, or that can't go on here. Its id must be new, as those of all that are asked for later.
  void Remember(Job ended) { jobs_.Remember(std::move(ended)); }
  // How far `keys`, kKeysMax at most, can be resumed in a space that was met, and where that lies: chunks of which all that is needed is in
  // DRAM, and those of which some is on disk only. Nobody has used them for it. Costs what a lookup does.
  struct Located {
    uint32_t chunks = 0;
    uint32_t below = 0;  // of them
  };
  Located Locate(SpaceId space, std::span<const ChunkKey> keys);
  // Where chunks are that lookups find: of the next places from `cursor` on (0: the first), `most` at most, and where to go on; kReadAll when
  // there are no more. A chunk keeps its place, so one that is there from the first call to the last is given once; with all that ChunksChanged
  // says from the first call on that makes up all there is. (One that hangs on a chunk which was dropped is given, and no lookup gets there.)
  // Cost: no event's work; kPlacesRead places for each of `most`; where many are empty a call gives fewer chunks, or none.
  uint64_t ReadChunks(uint64_t cursor, uint32_t most, std::vector<ChunkWhere>* chunks) const;
  static constexpr uint64_t kReadAll = UINT64_MAX;
  static constexpr uint32_t kPlacesRead = 4;
  // Whether a slab is being emptied, for which jobs may wait.
  bool vacates() const { return placement_.vacating().busy(); }
  // Of the slots that SlotsCopyStarted names, those whose chunks have taken the new ones, as of the last SlotsCopied.
  std::span<const Vacating::Move> slots_moved() const { return placement_.vacating().made(); }
  // Recomputes every count and relation from scratch and stops the process when one is wrong. For tests: O(everything).
  void CheckInvariants();

 private:
  struct Op {
    SessionId session;
    RequestTag tag;
    Direction direction = Direction::kLoad;
    // Store: those being filled; load: each, or the deepest of a chained group when that keeps the others.
    std::vector<ChunkIndex> chunks;
    uint32_t copied = 0;  // if it ends well
    uint32_t skipped = 0;
    uint32_t refused = 0;
    AllocationId allocation = {};  // that it swaps, or none
    // A load: the chunks whose reads hadn't begun when it was asked for, and how many still haven't; then it holds each of its chunks.
    std::vector<ChunkIndex> reads = {};
    size_t reads_left = 0;
    bool by_layer = false;                // it is waited for so
    std::vector<SlotRef> slots = {};      // given to its copy; absent while it waits
    std::optional<uint32_t> era = {};     // of a load that has slots (Vacating)
    std::vector<uint32_t> chunk_of = {};  // [slot]
  };
  enum class Claim { kCopy, kSkip, kRefuse, kTooManyGhosts };

  void On(const SessionOpened& event, Effects* out);
  void On(const SessionClosed& event, Effects* out);
  void On(const LookupAsked& event, Effects* out);
  void On(const ReleaseAsked& event, Effects* out);
  void On(const LoadAsked& event, Effects* out);
  void On(const StoreAsked& event, Effects* out);
  void On(const PinAsked& event, Effects* out);
  void On(const OperatorPinAsked& event, Effects* out);
  void On(const UnpinAsked& event, Effects* out);
  void On(const PinRemoved& event, Effects* out);
  void On(const HintAsked& event, Effects* out);
  void On(const AllocateAsked& event, Effects* out);
  void On(const FreeAsked& event, Effects* out);
  void On(const SwapAsked& event, Effects* out);
  void On(const CancelAsked& event, Effects* out);
  void On(const CopyFinished& event, Effects* out);
  void On(const WriteFinished& event, Effects* out);
  void On(const ReadFinished& event, Effects* out);
  void On(const SlotsCopied&, Effects*) { placement_.SlotsCopied(); }
  void On(const PrefillReported& event, Effects* out);
  void On(const TierRead& event, Effects* out);
  void On(const RemoteFound& event, Effects* out);
  void On(const RemoteReachable& event, Effects* out);
  void On(const RemoteForgot& event, Effects* out);
  void On(const RecodeAsked& event, Effects* out);
  void On(const Recoded& event, Effects* out);
  void On(const RemoteCleared& event, Effects* out);
  void On(const DiskWritable& event, Effects* out);
  void On(const DiskTold& event, Effects* out);
  void On(const SpaceFound& event, Effects* out);
  void On(const ChunksFound& event, Effects* out);
  void On(const PlacesWanted& event, Effects* out);
  void On(const PlacesLost& event, Effects* out);
  void On(const ClearKept& event, Effects* out);
  void On(const FlushAsked& event, Effects* out);
  void On(const ClearAsked& event, Effects* out);
  void On(const PromptClearAsked& event, Effects* out);
  void On(const TierClearAsked& event, Effects* out);
  void On(const MoveAsked& event, Effects* out);
  void On(const QuotaSet& event, Effects* out);
  void On(const JobCancelAsked& event, Effects* out);
  void On(const ChunksWatched&, Effects*) { placement_.Watch(); }
  void On(const Tick& event, Effects* out);

  // The rest of a lookup, whose position usable_ has found: what is leased and read for it, and its answer.
  void Answer(const LookupAsked& lookup, const Session& session, uint32_t position, bool waited, Effects* out);
  // Whether the remote store is asked for what follows `position` of a lookup; then that goes on with RemoteFound.
  bool AskRemote(const LookupAsked& lookup, const Session& session, uint32_t position, Effects* out);
  struct Ask {
    LookupAsked lookup;  // but its keys
    std::vector<ChunkKey> keys;
    SpaceId space;
    uint32_t epoch = 0;  // the space's, when it was asked
    absl::Time began;
    uint32_t from = 0;                          // the position before it was asked
    uint32_t asked = 0;                         // keys from there on, so far
    bool vain = false;                          // what is found may be what was to be forgotten
    JobId job = {};                             // that asks, instead of a lookup
    std::vector<std::vector<bool>> there = {};  // [group][key - from]
  };
  void AskFor(AskId id, Ask* ask, uint32_t keys, Effects* out);
  // Of an ask that has ended: puts what is there into the index. Those that weren't there: `added`.
  void TakeRemote(const Ask& ask, std::vector<ChunkRef>* added);
  // Those of them that nobody needs are known no longer; the deepest come last.
  void CollectUnneeded(std::span<const ChunkRef> added);
  void EndAsks(SessionId session);
  // The remote store shall forget them; until it has they aren't found there, nor written.
  void ForgetRemotely(RemoteForgotten forgotten, Effects* out);
  void ForgottenRemotely(SpaceId space, std::span<const ChunkKey> keys);
  // What clears couldn't tell it, a part after the other; and what cancelled ones couldn't isn't waited for any more.
  bool MayForgetAgain(const PromptJob& of) const {
    return !of.again.empty() && of.hiding == 0 && reachable_ && now_ >= of.again_at;
  }
  void ForgetAgain(uint64_t until, Effects* out);
  // Something of the space is removed there: what it has said that it has may be gone.
  void LoseRemotely(SpaceId space);
  // What is known to be there of spaces that other nodes have cleared isn't.
  void ForgetCleared(uint64_t until);
  // What is being written to it of this name is to be forgotten by it then, and the job waits for that.
  void DoomRemoteWrites(SpaceId space, const ChunkKey& key, JobId job);
  // Whether a clear of a prompt has this name, and hasn't ended: what hangs on the prompt's first chunk, which is hidden, is hidden only then. Were
  // it written to the remote store meanwhile, and evicted here, nobody would know that it has to be forgotten.
  bool IsBeingCleared(SpaceId space, const ChunkKey& key) const { return being_cleared_.contains({space, key}); }
  // Whether it is to forget what it has of this name, now or soon: what is written meanwhile may be forgotten, too.
  bool WillForget(SpaceId space, const ChunkKey& key) const {
    return remote_forgets_.contains({space, key}) || remote_doomed_.contains({space, key}) || IsBeingCleared(space, key);
  }
  // Chunks that shall be in the remote store, too; and what of them is written now.
  void OfferRemote(ChunkIndex chunk);
  bool CanWriteRemote() const {
    return reachable_ && !remote_queue_.empty() && remote_writing_ < options_.remote->writing &&
           !placement_.vacating().IsCopied(Find(remote_queue_.front().chunk));
  }
  void WriteRemote(Effects* out);
  void BeginRemoteWrite(ChunkIndex chunk, Effects* out);
  void RemoteWritten(ChunkIndex chunk, const absl::Status& status, Effects* out);
  // Finds or makes the chunk of `key` under `parent` and claims the session's shard of it. Sets *chunk. `wanted`: chunks of the store, from this one on.
  Claim ClaimShard(const Session& session, GroupId group, const ChunkKey& key, ChunkIndex parent, uint32_t wanted,
                   ChunkIndex* chunk);
  // The visible or filling chunk of `key`; one that a clear has left behind, or whose parent was dropped, is detached and not found.
  ChunkIndex FindCurrent(SpaceId space, GroupId group, const ChunkKey& key);
  void Detach(ChunkIndex chunk);
  // These go on until work() has come to `until`, or there is nothing left to do.
  void EndWhatIsOver(uint64_t until, Effects* out);
  void Reap(uint64_t until);
  void Clear(Job* job, uint64_t until);
  OpId Start(Op op, Effects* out);
  // Whether what was stored is kept: that it hasn't been cleared meanwhile, given up by another rank, or come too late.
  bool FinishShard(ChunkIndex chunk, Rank rank, bool stored);
  // How far it is worth loading what usable_ has found, which it has found then: to `position`, or less where the engine computes the rest
  // sooner. Notes in left_ what lies below behind that.
  uint32_t WorthLoading(const Session& session, uint32_t position, uint32_t have);
  // What of a position has to be waited for, from below, chunk by chunk: to_read_.
  void FindWaits(const Session& session, uint32_t position, uint32_t have);
  // The position up to which loading gains most, at least that where nothing has to be waited for.
  uint32_t BestPosition(const Space& space, uint32_t position) const;
  // Reads some of what a lookup has left, for nobody, while the tiers below have nothing else to do.
  void ReadLeft(Effects* out);
  // What is below of a lease's position, which usable_ has found, is read when there are slots for it. How many chunks that are,
  // with those that are being read.
  uint32_t Fetch(LeaseId lease, SpaceId space);
  // What a load of the lease waits for is read, also where that isn't to be read for the lease any more: what keeps a chunk there is the one
  // below it, whose read may have failed.
  void ReadFor(const Lease& lease, std::span<const ChunkIndex> waited_for);
  // Begins reads that wait, as far as slots are free or what lies in them is on disk, too.
  void BeginReads(Effects* out);
  bool BeginRead(ChunkIndex chunk, bool by_layer, Tenants::Victims victims, Effects* out);
  // From which a chunk that is below, or on its way, is read.
  Tier ReadFrom(const Chunk& chunk) const { return chunk.on_disk() ? Tier::kSsd : Tier::kRemote; }
  // Where nothing can be written nothing would come to be on disk, too.
  Tenants::Victims MayMakeRoomFrom() const {
    return writable_.value_or(false) && !no_room_ ? Tenants::Victims::kOnDisk : Tenants::Victims::kAny;
  }
  bool WaitsForSlots() const { return !readers_.empty() || !orphan_reads_.empty(); }
  // Whether nothing that is on its way will bring them any: what a job keeps may be what they wait for.
  bool Starves() const {
    return WaitsForSlots() && reading_.empty() && writing_ == Bytes{} && remote_writing_ == Bytes{} &&
           !placement_.SlabComesSoon();
  }
  ChunkIndex Find(ChunkRef chunk) const;
  ChunkRef RefOf(ChunkIndex chunk) const { return {chunk, chunks_[chunk].generation}; }
  // Goes on with what waits for reads that have begun, copy by copy, until the event's work is done.
  void BeginWaiting(Effects* out);
  void EndWaiting(OpId op, absl::Status status, Effects* out);
  static absl::Status SessionWasClosed() { return absl::CancelledError("the session was closed"); }
  void GoOnVacating(Effects* out) {
    if (auto copy = placement_.GoOnVacating()) out->push_back(*std::move(copy));
    job_waits_ &= placement_.vacating().busy();
  }
  // Tells what has been forgotten, begins reads, and writes what shall be below.
  void ServeBelow(Effects* out);
  // Keeps the reserve of clean slots: when some are missing a few more than that are written, for a burst of writes costs about as many
  // wakeups, syncs and commits as one.
  void ServeDisk(Effects* out);
  // What a tenant shall have at hand in slots that are free or on disk, too; and what it has.
  Bytes ReserveOf(const Tenant& tenant) const;
  Bytes AtHand(const Tenant& tenant) const;
  bool MayWrite() const {
    return disk_told_ && writable_.value_or(false) && writing_ < options_.disk->writing &&
           writes_.size() < options_.disk->writes;
  }
  // The first copy of a sealed chunk, or another one in its place.
  void BeginWrite(ChunkIndex chunk, Effects* out);
  void Offer(ChunkIndex chunk);
  // A chunk whose write has ended: it is offered, or goes.
  void Settle(ChunkIndex chunk);
  void TakeFound(SpaceId space, const ChunksFound::Found& found);
  // The chunk that is on disk there; none if that isn't so any more.
  ChunkIndex FindAt(const PlacesWanted::Record& record) const;
  void GiveBack(ChunkIndex chunk, Effects* out);
  void ForgetCopy(ChunkIndex chunk);
  struct Flush {
    std::optional<SessionId> session;
    RequestTag tag;
    std::optional<SpaceId> space;
    ChunkIndex next = 0, end = 0;  // places that it has looked at, of those that it will
    uint64_t writes = 0;           // it waits for those that were begun before this one
    uint64_t chunks = 0;           // on disk
    uint64_t failed = 0;
  };
  bool CanFlush() const {
    return !flushes_.empty() && flushes_.front().next < flushes_.front().end && MayWrite() &&
           !placement_.vacating().IsCopied(flushes_.front().next);
  }
  void GoOnFlushing(uint64_t until, Effects* out);
  void EndFlushes(Effects* out);
  // Whether a Tick can go on with the job whose turn it is: the last step of a clear is to wait until it is durable.
  bool JobWork() const;
  void StartJob(Job job);
  // Whether a job in steps may take its first: what a move goes through may be what the disk hasn't told of yet, and what goes on after a restart
  // waits a while for the store beyond the node.
  bool MayBegin(const Job& job, PromptJob* of);
  bool AwaitsRemote() const { return remote_awaited_until_.has_value() && now_ < *remote_awaited_until_ && !reachable_; }
  static bool InSteps(const Job& job) { return job.kind != JobKind::kClear || job.tier.has_value(); }
  // Jobs in steps (prompt_jobs.h). These go on with one until work() has come to `until`, and say how that ended.
  enum class Turn { kMore, kWaits, kAside, kDone };
  Turn GoOnClearing(Job* job, PromptJob* of, uint64_t until, Effects* out);
  Turn GoOnWriting(Job* job, PromptJob* of, uint64_t until, Effects* out);
  Turn GoOnWritingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out);
  static Turn GoOnRecoding(Job* job, PromptJob* of, Effects* out);
  Turn GoOnReading(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // Of a move to the remote store, which others remove from: whether that has said if it has this key. And takes its word for a chunk of it.
  bool KnowsForMove(const Job& job, PromptJob* of, size_t key, Effects* out);
  void BelieveForMove(const PromptJob& of, size_t key, ChunkIndex chunk);
  // Whether it has the chunk, as far as is known: nothing of the space was removed there since it was asked.
  bool MayFreeFor(const PromptJob& of, ChunkIndex chunk) const {
    return chunks_[chunk].remote == RemoteCopy::kThere && spaces_[chunks_[chunk].space].remote_losses == of.losses;
  }
  // A move from disk to the remote store.
  Turn GoOnSending(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // Of a move from the remote store: asks for the next part of the prompt; what has come of that; what of it is kept (`in_store`: it says that
  // it has that, whether or not it is known here); and what it is to forget in the end.
  Turn GoOnReadingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out);
  void AskForMove(const Job& job, PromptJob* of, size_t from, Effects* out);
  void TakeForMove(const Ask& ask, const absl::Status& status);
  void KeepForMove(Job* job, PromptJob* of, GroupId group, const ChunkKey& key, bool in_store);
  Turn GoOnForgetting(const Job& job, PromptJob* of, uint64_t until, Effects* out);
  void GoOnWithPrompt(Job* job, uint64_t until, Effects* out);
  void HideOfPrompt(ChunkIndex chunk, bool untold, Job* job, ChunksHidden* hidden);
  void HideFromRestarts(ChunksHidden hidden, PromptJob* of, Effects* out);
  // What of the space couldn't be read and isn't known any more: of what is cleared, some of it may be.
  void HideLeft(SpaceId space, JobId job, PromptJob* of, Effects* out);
  Turn GoOnClearingTier(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // The chunk of an item of a prompt, if it is a hit by itself; what the disk may yet tell of is hidden, too.
  ChunkIndex FindOfPrompt(const Job& job, const PromptJob& of, uint64_t item, ChunksHidden* hidden) const;
  // A tier gives up its copy of a chunk that is a hit, unless that is in use. kWaits: it is being read there, or written again.
  Turn ClearOfDram(ChunkIndex chunk, Job* job, PromptJob* of);
  Turn ClearOfDisk(ChunkIndex chunk, Job* job, ChunksHidden* hidden);
  Turn ClearOfRemote(ChunkIndex chunk, Job* job, bool of_prompt);
  // Notes that a chunk comes to a tier, for clears of it that run or wait; and whether it has since one was asked for.
  void NoteCame(ChunkIndex chunk, Tier tier);
  bool CameSince(ChunkIndex chunk, Tier tier, uint64_t since) const;
  // Frees the slots of a chunk that nothing needs there.
  void FreeSlotsOf(ChunkIndex chunk);
  void EndPinsOfHidden(PromptJob* of, SpaceId space, uint64_t until);
  bool WriteForMove(ChunkIndex chunk, Effects* out);
  Turn ReadForMove(ChunkIndex chunk, Effects* out);
  // What a job on a prompt holds that has ended is let go in slices.
  void ForgetPromptJob(JobId job);
  Bytes BytesOf(ChunkIndex chunk) const { return spaces_[chunks_[chunk].space].chunk_bytes(chunks_[chunk].group); }
  // The copy of an op begins that doesn't wait, any more; or it ends, for its session was closed meanwhile, or a chunk of it lost.
  void BeginCopy(OpId id, Op* op, Effects* out);
  // What is left to do when an op that was taken out has ended: its session hears `ended`, or is drained.
  void EndOp(const Op& op, OpId id, OpEnded ended, Effects* out);
  Bytes LeaseBytes(SpaceId space, uint32_t position, uint32_t have) const;
  // Whether the chunks of a lease have room beside those before `have` that cannot leave as long as it lives.
  bool FitsBehind(uint32_t have, const Session& session, uint32_t position) const;
  // What a lease on the position that usable_ has found keeps; the rest of it is the caller's.
  Lease LeaseOn(SpaceId id, uint32_t position, uint32_t have) const;
  // The position of `keys` is kept by a pin of this name from now on; how many chunks that are. Errors: ResourceExhausted  the tenant's budget.
  struct PinWish {
    absl::Time until = absl::InfiniteFuture();
    bool by_operator = false;  // then it doesn't count how often it is said
  };
  absl::StatusOr<uint32_t> PinPosition(SpaceId space, std::string owner, std::span<const ChunkKey> keys, PinWish wish);
  // How many chunks of a load, those of its `slots`, were dropped now.
  uint32_t DropCorrupt(const Op& op, std::span<const uint32_t> slots);
  void Keep(std::span<const ChunkIndex> chunks);
  void KeepNoLonger(std::span<const ChunkIndex> chunks);
  PinRow RowOf(SpaceId space, const Pins::Named& named) const;
  void Doom(ChunkIndex chunk);
  void Abandon(ChunkIndex chunk);
  void EndLease(LeaseId lease);
  void EndAllocation(AllocationId allocation);
  void CountNoLonger(AllocationId allocation);
  void SwapEnded(const Op& op, OpId id, bool ok);
  Bytes PinBudget(TenantId tenant) const;
  // A use of the chunk has ended (a lease, a copy, a store that passed it): it was used last now, or goes if it was only waiting.
  void UseEnded(ChunkIndex chunk);
  void UsePath(std::span<const ChunkIndex> path, bool chained);

  CoreOptions options_;
  pool::SlotAllocator& slots_;
  pool::HeapSections own_sections_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<absl::Time> doubt_until_;  // of slots that rest, from the first Tick on
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

  // Leases some of whose chunks wait to be read, in the order in which they came; those of a chain the deepest first, so that each is kept
  // by the one below it. And chunks whose lease has ended, but not the load that waits for them.
  absl::btree_map<uint64_t, LeaseId> readers_;
  uint64_t next_reader_ = 1;
  struct OrphanRead {
    ChunkRef chunk;
    bool by_layer;
  };
  std::deque<OrphanRead> orphan_reads_;
  bool more_reads_ = false;  // an event's work ended before all was begun that could be
  // Chunks that are to be read, each with an operation that waits for that to begin. Those whose reads have begun, and whose operations
  // don't know it yet. And those that are being read.
  absl::btree_set<std::pair<ChunkIndex, uint64_t>> waiting_;
  std::deque<ChunkRef> begun_reads_;
  std::deque<OpId> given_up_;  // that waited when their session was closed; some may have ended since
  absl::flat_hash_set<ChunkIndex> reading_;
  using OfTiers = std::array<Bytes, kTiers>;
  OfTiers reading_bytes_{};  // [tier] of slots that are being read from it
  // By WorthLoading, of the lookup that is being answered: [position] what has to be read from which tier, and the first position that has to
  // be waited for; and the chunks below, by position, of which those are left that lie behind the answer.
  std::vector<OfTiers> to_read_;
  uint32_t waits_from_ = 0;
  std::vector<std::pair<uint32_t, ChunkIndex>> left_;
  uint32_t trials_ = 0;
  std::array<LearnedCost, kTiers> reading_cost_;  // [tier] seconds that it takes for bytes, and for beginning
  absl::flat_hash_set<ChunkIndex> to_move_;       // of those being read: they are to be written elsewhere then
  // Of those that are read, waited for, or written elsewhere: their places count no more, and are forgotten when that has ended.
  absl::flat_hash_set<ChunkIndex> places_lost_;
  bool no_room_ = false;                          // it had none for the last write
  bool all_cleared_ = false;                      // as Space::cleared, of spaces that weren't known yet, too
  bool disk_told_ = true;                         // what lies on the disk is known, as far as it matters for writing
  std::optional<bool> writable_;                  // the disk; nothing: it isn't ready yet
  Bytes writing_{};                               // of slots that are being written
  absl::btree_map<uint64_t, ChunkIndex> writes_;  // that are being written, in the order in which that began
  absl::flat_hash_map<ChunkIndex, uint64_t> write_of_;
  uint64_t next_write_ = 1;
  std::vector<ChunkIndex> copied_;  // scratch of ServeDisk
  DiskAges ages_;
  bool reachable_ = false;                                // the remote store
  absl::Time remote_pause_until_ = absl::InfinitePast();  // until then it isn't asked
  HandleTable<AskId, Ask> asks_;
  struct ToWrite {
    ChunkRef chunk;
    uint64_t serial;
  };
  std::deque<ToWrite> remote_queue_;
  uint64_t next_remote_ = 1;
  // Places that are still to be looked through for chunks of spaces that other nodes have cleared from `cleared_since_` on.
  ChunkIndex cleared_next_ = 0, cleared_end_ = 0;
  uint64_t cleared_since_ = 0;
  Bytes remote_writing_{};                                           // of slots that are being written to it
  std::map<std::pair<SpaceId, ChunkKey>, uint32_t> being_cleared_;   // by so many clears; with a remote store only
  std::map<std::pair<SpaceId, ChunkKey>, uint32_t> remote_forgets_;  // what it is to forget and hasn't, so often
  // Chunks that are being written to it, by name: one that is detached may be written beside another of its name. And those whose prompt was
  // cleared meanwhile, by one job or several: it is to forget them, for each, when they have been written.
  struct Doomed {
    JobId job;
    uint32_t writes = 0;
  };
  struct RemoteWrites {
    uint32_t count = 0;
    uint64_t serial = 0;  // of the last
  };
  std::map<std::pair<SpaceId, ChunkKey>, RemoteWrites> remote_writes_;
  std::map<std::pair<SpaceId, ChunkKey>, std::vector<Doomed>> remote_doomed_;
  std::deque<Flush> flushes_;
  uint32_t written_last_ = 0;  // the tenant whose reserve was refilled last
  Jobs jobs_;
  std::map<JobId, PromptJob> prompt_jobs_;          // that run
  bool job_waits_ = false;                          // the current one does, for an event
  std::optional<absl::Time> remote_awaited_until_;  // by one that goes on after a restart, and by those after it
  std::vector<ChunkIndex> let_go_;                  // that an ended one has kept
  std::deque<std::pair<SpaceId, std::vector<ChunkKey>>> unforgotten_;  // PromptJob::again of cancelled ones
  // While clears of one tier run or wait: chunks that have come there, with the place's generation and a number that counts them.
  struct Came {
    uint32_t generation = 0;
    uint64_t number = 0;
  };
  uint32_t tier_clears_ = 0;
  uint64_t next_came_ = 1;
  absl::btree_map<std::pair<ChunkIndex, Tier>, Came> came_;
  // Keys that were cleared before the disk had told of all that it has: it may have such a chunk.
  bool all_told_ = false;
  std::set<std::pair<SpaceId, ChunkKey>> cleared_keys_;
  std::set<std::pair<SpaceId, ChunkKey>> cleared_prompts_;  // of them, those that take what hangs on them along
  std::deque<Pins::OfSpace> cleared_pins_;                  // to be ended in slices
  struct DeadWriter {
    InstanceId instance;
    uint64_t serial = 0;  // of its half stores those that are older: what the dead rank hasn't stored of them it never will
  };
  std::deque<DeadWriter> reap_;
  std::deque<std::pair<ChunkIndex, uint64_t>> quiet_;  // doomed half stores (chunk, serial) that have only to be ended
  UsablePosition usable_;                              // of the lookup that is being answered
  CoreStatus counters_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CORE_H_
