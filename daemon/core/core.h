#ifndef KVIST_DAEMON_CORE_CORE_H_
#define KVIST_DAEMON_CORE_CORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/allocations.h"
#include "daemon/core/arrivals.h"
#include "daemon/core/ask.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/core_options.h"
#include "daemon/core/core_status.h"
#include "daemon/core/disk_ages.h"
#include "daemon/core/disk_writes.h"
#include "daemon/core/effects.h"
#include "daemon/core/events.h"
#include "daemon/core/fills.h"
#include "daemon/core/flushes.h"
#include "daemon/core/gate.h"
#include "daemon/core/handle_table.h"
#include "daemon/core/jobs.h"
#include "daemon/core/leases.h"
#include "daemon/core/op.h"
#include "daemon/core/pin_notes.h"
#include "daemon/core/pins.h"
#include "daemon/core/placement.h"
#include "daemon/core/prompt_jobs.h"
#include "daemon/core/reads.h"
#include "daemon/core/remote_names.h"
#include "daemon/core/sessions.h"
#include "daemon/core/space_spec.h"
#include "daemon/core/spaces.h"
#include "daemon/core/tenants.h"
#include "daemon/core/untold_clears.h"
#include "daemon/core/untold_pins.h"
#include "daemon/core/usable_position.h"
#include "daemon/core/use_notes.h"
#include "storage/pool/sections.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

class LeftIndex;

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
    if (!std::is_same_v<Event, Tick>) EndJobsWait();
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
           !cleared_pins_.empty() || pins_used_to_.has_value() || placement_.vacates() || placement_.MakesRoom() ||
           arrivals_.has_leftovers() || !placement_.rest().empty() || waiting_.has_begun() ||
           (placement_.in_doubt() > 0 && now_ >= doubt_until_.value_or(now_)) || (more_reads_ && WaitsForSlots()) ||
           CanFlush() || CanWriteRemote() || cleared_walk_.next < cleared_walk_.end || !unforgotten_.empty() ||
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
  // Where each of these chunks, kKeysMax at most, is now, each by itself, as far as a lookup would find it: tiers[i] gets the TierBits of keys[i], 0 for
  // none. How many have some. Nobody has used them for it. `space` and `group` are there. Costs one work for each key.
  uint32_t Where(SpaceId space, GroupId group, std::span<const ChunkKey> keys, std::span<uint8_t> tiers) const;
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
  // Each part below is a file, and ends with the state that is its own. What `On` does with an event stands at the event.

  // ---- core.cc, the tables
  void On(const SessionOpened& event, Effects* out);
  void On(const SessionClosed& event, Effects* out);
  void On(const QuotaSet& event, Effects* out);
  void On(const ChunksWatched&, Effects*) { placement_.Watch(); }
  ChunkIndex Find(ChunkRef chunk) const;
  ChunkRef RefOf(ChunkIndex chunk) const { return {chunk, chunks_[chunk].generation}; }
  Bytes BytesOf(ChunkIndex chunk) const { return spaces_[chunks_[chunk].space].chunk_bytes(chunks_[chunk].group); }
  void Keep(std::span<const ChunkIndex> chunks);
  void KeepNoLonger(std::span<const ChunkIndex> chunks);
  void UsePath(std::span<const ChunkIndex> path, bool chained);
  // A use of the chunk has ended (a lease, a copy, a store that passed it): it was used last now, or goes if it was only waiting.
  void UseEnded(ChunkIndex chunk);
  void Detach(ChunkIndex chunk);

  CoreOptions options_;
  pool::SlotAllocator& slots_;
  pool::HeapSections own_sections_;
  absl::Time now_ = absl::UnixEpoch();
  Spaces spaces_;
  ChunkTable chunks_;
  Tenants tenants_;
  Placement placement_;
  Fills fills_;
  Leases leases_;
  Pins pins_;
  Allocations allocations_;
  Sessions sessions_;
  HandleTable<OpId, Op> ops_;
  CoreStatus counters_;

  // ---- leasing.cc
  void On(const LookupAsked& event, Effects* out);
  void On(const ReleaseAsked& event, Effects* out);
  // The rest of a lookup, whose position usable_ has found: what is leased and read for it, and its answer.
  void Answer(const LookupAsked& lookup, const Session& session, uint32_t position, bool waited, Effects* out);
  Bytes LeaseBytes(SpaceId space, uint32_t position, uint32_t have) const;
  // Whether the chunks of a lease have room beside those before `have` that cannot leave as long as it lives.
  bool FitsBehind(uint32_t have, const Session& session, uint32_t position) const;
  // What a lease on the position that usable_ has found keeps; the rest of it is the caller's.
  Lease LeaseOn(SpaceId id, uint32_t position, uint32_t have) const;
  void EndLease(LeaseId lease);

  UsablePosition usable_;  // of the lookup that is being answered

  // ---- copying.cc
  void On(const LoadAsked& event, Effects* out);
  void On(const CancelAsked& event, Effects* out);
  void On(const CopyFinished& event, Effects* out);
  void On(const SlotsCopied&, Effects*) { placement_.SlotsCopied(); }
  OpId Start(Op op, Effects* out);
  // The copy of an op begins that doesn't wait, any more; or it ends, for its session was closed meanwhile, or a chunk of it lost.
  void BeginCopy(OpId id, Op* op, Effects* out);
  // What is left to do when an op that was taken out has ended: its session hears `ended`, or is drained.
  void EndOp(const Op& op, OpId id, OpEnded ended, Effects* out);
  // How many chunks of a load, those of its `slots`, were dropped now.
  uint32_t DropCorrupt(const Op& op, std::span<const uint32_t> slots);
  // Whoever was to write a chunk below has found that its slots hold other bytes than were stored.
  void DropCorrupt(ChunkIndex chunk, Effects* out);
  static absl::Status SessionWasClosed() { return absl::CancelledError("the session was closed"); }

  // ---- storing.cc
  void On(const StoreAsked& event, Effects* out);
  // Finds or makes the chunk of `key` under `parent` and claims the session's shard of it. Sets *chunk. `wanted`: chunks of the store, from this one on.
  enum class Claim { kCopy, kSkip, kRefuse, kTooManyGhosts };
  Claim ClaimShard(const Session& session, GroupId group, const ChunkKey& key, ChunkIndex parent, uint32_t wanted,
                   ChunkIndex* chunk);
  // The visible or filling chunk of `key`; one that a clear has left behind, or whose parent was dropped, is detached and not found.
  ChunkIndex FindCurrent(SpaceId space, GroupId group, const ChunkKey& key);
  // Whether what was stored is kept: that it hasn't been cleared meanwhile, given up by another rank, or come too late.
  bool FinishShard(ChunkIndex chunk, Rank rank, bool stored);
  void Doom(ChunkIndex chunk);
  void Abandon(ChunkIndex chunk);

  // ---- pinning.cc
  void On(const PinAsked& event, Effects* out);
  void On(const OperatorPinAsked& event, Effects* out);
  void On(const UnpinAsked& event, Effects* out);
  void On(const PinRemoved& event, Effects* out);
  void On(const PinFound& event, Effects* out);
  void On(const HintAsked& event, Effects* out);
  // The position of `keys` is kept by a pin of this name from now on; how many chunks that are. Errors: ResourceExhausted  the tenant's budget.
  struct PinWish {
    absl::Time until = absl::InfiniteFuture();
    uint64_t times = 1;  // that it counts for; 0: an operator's, which is said again and doesn't count
  };
  absl::StatusOr<uint32_t> PinPosition(SpaceId space, const PinName& name, std::span<const ChunkKey> keys, PinWish wish);
  void EndPin(SpaceId space, const PinName& name);
  // A later daemon is to know of the pin, whose position `keys` begin with; or that it is over.
  void NotePin(SpaceId space, const PinName& name, const Pin& pin, std::span<const ChunkKey> keys);
  void NotePinEnded(SpaceId space, const PinName& name);
  Bytes PinBudget(TenantId tenant) const;
  PinRow RowOf(SpaceId space, const Pins::Named& named) const;

  PinNotes pin_notes_;
  UntoldPins untold_pins_;

  // ---- swapping.cc
  void On(const AllocateAsked& event, Effects* out);
  void On(const FreeAsked& event, Effects* out);
  void On(const SwapAsked& event, Effects* out);
  void EndAllocation(AllocationId allocation);
  void CountNoLonger(AllocationId allocation);
  void SwapEnded(const Op& op, OpId id, bool ok);

  Bytes private_bytes_{};  // of all allocations' slots

  // ---- reading.cc: what is below comes into slots
  void On(const ReadFinished& event, Effects* out);
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
  bool WaitsForSlots() const { return !read_queue_.empty(); }
  // Whether nothing that is on its way will bring them any: what a job keeps may be what they wait for.
  bool Starves() const {
    return WaitsForSlots() && reads_.empty() && writes_.empty() && remote_writing_ == Bytes{} && !placement_.SlabComesSoon();
  }
  // Goes on with what waits for reads that have begun, copy by copy, until the event's work is done.
  void BeginWaiting(Effects* out);
  void EndWaiting(OpId op, absl::Status status, Effects* out);

  ReadQueue read_queue_;
  bool more_reads_ = false;  // an event's work ended before all was begun that could be
  WaitingOps waiting_;
  std::deque<OpId> given_up_;  // that waited when their session was closed; some may have ended since
  Reads reads_;
  absl::flat_hash_set<ChunkIndex> to_move_;  // of those being read: they are to be written elsewhere then

  // ---- gate.cc: load or recompute
  void On(const PrefillReported& event, Effects* out);
  void On(const TierRead& event, Effects*) { gate_.Learn(event); }
  // How far it is worth loading what usable_ has found, which it has found then: to `position`, or less where the engine computes the rest
  // sooner. Notes in left_ what lies below behind that.
  uint32_t WorthLoading(const Session& session, uint32_t position, uint32_t have);
  // What of a position has to be waited for, from below, chunk by chunk: gated_ and left_.
  void FindWaits(const Session& session, uint32_t position, uint32_t have);
  // Reads some of what a lookup has left, for nobody, while the tiers below have nothing else to do.
  void ReadLeft(Effects* out);

  Gate gate_;
  Gate::Waits gated_;                                  // of the lookup that is being answered
  std::vector<std::pair<uint32_t, ChunkIndex>> left_;  // and what of it lies below behind the answer, by position
  uint32_t trials_ = 0;                                // of reading what was left

  // ---- disk.cc: slots that are on disk, too
  void On(const WriteFinished& event, Effects* out);
  void On(const DiskWritable& event, Effects* out);
  void On(const FlushAsked& event, Effects* out);
  // Tells what has been forgotten, begins reads, and writes what shall be below.
  void ServeBelow(Effects* out);
  // Keeps the reserve of clean slots: when some are missing a few more than that are written, for a burst of writes costs about as many
  // wakeups, syncs and commits as one.
  void ServeDisk(Effects* out);
  // What a tenant shall have at hand in slots that are free or on disk, too; and what it has.
  Bytes ReserveOf(const Tenant& tenant) const;
  Bytes AtHand(const Tenant& tenant) const;
  bool MayWrite() const {
    return disk_told_ && writable_.value_or(false) && writes_.bytes() < options_.disk->writing &&
           writes_.size() < options_.disk->writes;
  }
  // The first copy of a sealed chunk, or another one in its place.
  void BeginWrite(ChunkIndex chunk, Effects* out);
  void Offer(ChunkIndex chunk);
  // A chunk whose write has ended: it is offered, or goes.
  void Settle(ChunkIndex chunk);
  bool CanFlush() const {
    return !flushes_.empty() && !flushes_.first().looked() && MayWrite() &&
           !placement_.vacating().IsCopied(flushes_.first().next);
  }
  void GoOnFlushing(uint64_t until, Effects* out);
  void EndFlushes(Effects* out);

  DiskWrites writes_;
  Flushes flushes_;
  std::optional<bool> writable_;    // the disk; nothing: it isn't ready yet
  bool no_room_ = false;            // it had none for the last write
  uint32_t written_last_ = 0;       // the tenant whose reserve was refilled last
  std::vector<ChunkIndex> copied_;  // scratch of ServeDisk

  // ---- disk_places.cc: what the disk tells of its contents
  void On(const SpaceFound& event, Effects* out);
  void On(const ChunksFound& event, Effects* out);
  void On(const UsesFound& event, Effects* out);
  void On(const DiskTold& event, Effects* out);
  void On(const PlacesWanted& event, Effects* out);
  void On(const PlacesLost& event, Effects* out);
  void TakeFound(SpaceId space, const ChunksFound::Found& found);
  // The chunk that is on disk there; none if that isn't so any more.
  ChunkIndex FindAt(const PlacesWanted::Record& record) const;
  void GiveBack(ChunkIndex chunk, Effects* out);
  void ForgetCopy(ChunkIndex chunk);
  // Somebody has asked for it, or wants it kept.
  void Use(ChunkIndex chunk);
  void NoteUse(ChunkIndex chunk);

  bool all_told_ = false;  // what lies on the disk is known
  bool disk_told_ = true;  // or was never taken over from another core: then nothing is written twice
  UntoldClears untold_clears_;
  DiskAges ages_;
  UseNotes use_notes_;
  // What pins up to this number keep counts as used in this period; absent: all pins'.
  std::optional<uint64_t> pins_used_to_;
  // Of those that are read, waited for, or written elsewhere: their places count no more, and are forgotten when that has ended.
  absl::flat_hash_set<ChunkIndex> places_lost_;

  // ---- remote.cc: a store beyond the node
  void On(const RemoteFound& event, Effects* out);
  void On(const RemoteReachable& event, Effects* out);
  void On(const RemoteForgot& event, Effects* out);
  void On(const RemoteCleared& event, Effects* out);
  // Whether the remote store is asked for what follows `position` of a lookup; then that goes on with RemoteFound.
  bool AskRemote(const LookupAsked& lookup, const Session& session, uint32_t position, Effects* out);
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
  // Chunks that shall be in the remote store, too; and what of them is written now.
  void OfferRemote(ChunkIndex chunk);
  bool CanWriteRemote() const {
    return reachable_ && !remote_queue_.empty() && remote_writing_ < options_.remote->writing &&
           !placement_.vacating().IsCopied(Find(remote_queue_.front().chunk));
  }
  void WriteRemote(Effects* out);
  void BeginRemoteWrite(ChunkIndex chunk, Effects* out);
  void RemoteWritten(ChunkIndex chunk, const absl::Status& status, Effects* out);

  bool reachable_ = false;                                // the store
  absl::Time remote_pause_until_ = absl::InfinitePast();  // until then it isn't asked
  HandleTable<AskId, Ask> asks_;
  RemoteNames remote_names_;
  struct ToWrite {
    ChunkRef chunk;
    uint64_t serial;
  };
  std::deque<ToWrite> remote_queue_;
  Bytes remote_writing_{};    // of slots that are being written to it
  uint64_t next_remote_ = 1;  // numbers what is offered, written and cleared there, in that order
  // What of spaces that other nodes have cleared from `since` (next_remote_) on is known to be there is forgotten, place by place.
  struct ClearedWalk {
    ChunkIndex next = 0, end = 0;
    uint64_t since = 0;
  };
  ClearedWalk cleared_walk_;
  std::deque<std::pair<SpaceId, std::vector<ChunkKey>>> unforgotten_;  // PromptJob::again of cancelled ones

  // ---- running_jobs.cc: clears of spaces, and the turns of all jobs
  void On(const ClearAsked& event, Effects* out);
  void On(const ClearKept& event, Effects* out);
  void On(const JobCancelAsked& event, Effects* out);
  void Clear(Job* job, uint64_t until);
  void StartJob(Job job);
  // Whether a Tick can go on with the job whose turn it is: the last step of a clear is to wait until it is durable.
  bool JobWork() const;
  void GoOnWithJob(uint64_t until, Effects* out);
  // The others go in steps (prompt_jobs.h). One goes on until work() has come to `until`, and says how that ended.
  static bool InSteps(const Job& job) { return job.kind != JobKind::kClear || job.tier.has_value(); }
  static bool Encodes(const Job& job) { return job.kind == JobKind::kCompress || job.kind == JobKind::kDecompress; }
  enum class Turn { kMore, kWaits, kAside, kDone };
  void GoOnWithPrompt(Job* job, uint64_t until, Effects* out);
  // Whether a job in steps may take its first: what a move goes through may be what the disk hasn't told of yet, and what goes on after a restart
  // waits a while for the store beyond the node.
  bool MayBegin(const Job& job, PromptJob* of);
  bool AwaitsRemote() const { return remote_awaited_until_.has_value() && now_ < *remote_awaited_until_ && !reachable_; }
  // What a job on a prompt holds that has ended is let go in slices.
  void ForgetPromptJob(JobId job);

  Jobs jobs_;
  std::map<JobId, PromptJob> prompt_jobs_;  // that run
  std::optional<JobId> recoding_;           // the one that encodes now
  bool job_waits_ = false;                  // the current one does, for an event
  // What it waits for may have come while it looked, for some slices, whether there is anything for it to do: then it looks again.
  bool job_heard_ = false;
  void EndJobsWait() {
    job_waits_ = false;
    job_heard_ = true;
  }
  std::optional<absl::Time> remote_awaited_until_;  // by one that goes on after a restart, and by those after it
  std::vector<ChunkIndex> let_go_;                  // that an ended one has kept

  // ---- prompt_clears.cc
  void On(const PromptClearAsked& event, Effects* out);
  Turn GoOnClearing(Job* job, PromptJob* of, uint64_t until, Effects* out);
  void HideOfPrompt(ChunkIndex chunk, bool untold, Job* job, ChunksHidden* hidden);
  void HideFromRestarts(ChunksHidden hidden, PromptJob* of, Effects* out);
  // What of the space couldn't be read and isn't known any more: of what is cleared, some of it may be.
  void HideLeft(SpaceId space, JobId job, PromptJob* of, Effects* out);
  void EndPinsOfHidden(PromptJob* of, SpaceId space, uint64_t until);

  // ---- tier_clears.cc
  void On(const TierClearAsked& event, Effects* out);
  Turn GoOnClearingTier(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // The chunk of an item of a prompt, if it is a hit by itself; what the disk may yet tell of is hidden, too.
  ChunkIndex FindOfPrompt(const Job& job, const PromptJob& of, uint64_t item, ChunksHidden* hidden) const;
  // A tier gives up its copy of a chunk that is a hit, unless that is in use. kWaits: it is being read there, or written again.
  Turn ClearOfDram(ChunkIndex chunk, Job* job, PromptJob* of);
  Turn ClearOfDisk(ChunkIndex chunk, Job* job, ChunksHidden* hidden);
  Turn ClearOfRemote(ChunkIndex chunk, Job* job, bool of_prompt);
  // A chunk comes to a tier: a clear of that which runs or waits leaves it there.
  void NoteCame(ChunkIndex chunk, Tier tier);

  Arrivals arrivals_;

  // ---- moves.cc: to disk and from it
  void On(const MoveAsked& event, Effects* out);
  Turn GoOnWriting(Job* job, PromptJob* of, uint64_t until, Effects* out);
  Turn GoOnReading(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // Whether the chunk, which is in slots, will be on disk, or is being written.
  bool WriteForMove(ChunkIndex chunk, Effects* out);
  // kDone: it is being read, or can't be.
  Turn ReadForMove(ChunkIndex chunk, Effects* out);
  // Frees the slots of a chunk that nothing needs there.
  void FreeSlotsOf(ChunkIndex chunk);

  // ---- remote_moves.cc: to the remote store, from slots and from disk
  Turn GoOnWritingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out);
  Turn GoOnSending(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // Others remove from it: whether it has said if it has this key. And takes its word for a chunk of it.
  bool KnowsForMove(const Job& job, PromptJob* of, size_t key, Effects* out);
  void BelieveForMove(const PromptJob& of, size_t key, ChunkIndex chunk);
  // Whether it has the chunk, as far as is known: nothing of the space was removed there since it was asked.
  bool MayFreeFor(const PromptJob& of, ChunkIndex chunk) const {
    return chunks_[chunk].remote == RemoteCopy::kThere && spaces_[chunks_[chunk].space].remote_losses == of.losses;
  }
  // From it: asks for the next part of the prompt; what has come of that; what of it is kept (`in_store`: it says that it has that, whether or
  // not it is known here); and what it is to forget in the end.
  Turn GoOnReadingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out);
  void AskForMove(const Job& job, PromptJob* of, size_t from, Effects* out);
  void TakeForMove(const Ask& ask, const absl::Status& status);
  void KeepForMove(Job* job, PromptJob* of, GroupId group, const ChunkKey& key, bool in_store);
  Turn GoOnForgetting(const Job& job, PromptJob* of, uint64_t until, Effects* out);

  // ---- recoding.cc
  void On(const RecodeAsked& event, Effects* out);
  void On(const Recoded& event, Effects* out);
  Turn GoOnRecoding(Job* job, PromptJob* of, Effects* out);
  void NextRecoding();  // may begin

  // ---- disk_recoding.cc: of what is on disk
  Turn GoOnRecodingOnDisk(Job* job, PromptJob* of, uint64_t until, Effects* out);
  // Keeps as much of the prompt as is encoded at a time. False: it hasn't come so far.
  bool TakeToRecode(Job* job, PromptJob* of, uint64_t until);
  void LetGoOfRecoded(const PromptJob::Kept& kept, PromptJob* of);
  // kDone: its write has begun, or never will, which was counted.
  Turn BeginRecodingOf(ChunkIndex chunk, Job* job, const PromptJob& of, Effects* out);
  // The chunk's write has ended. Whether it was one that encodes; then it was counted.
  bool EndRecodingOf(ChunkIndex chunk, const WriteFinished& event);

  struct Recoding {
    JobId job;
    uint8_t method = 0;
  };
  absl::flat_hash_map<ChunkIndex, Recoding> recodings_;  // of those that are being written: what encodes them

  // ---- slices.cc: what Ticks go on with, until work() has come to `until` or there is nothing left to do
  void On(const Tick& event, Effects* out);
  void UsePinned(uint64_t until);
  // What these keep with all that is above them.
  void UseOnDisk(std::span<const ChunkIndex> kept);
  void EndWhatIsOver(uint64_t until, Effects* out);
  void Reap(uint64_t until);
  void GoOnVacating(Effects* out) {
    if (auto copy = placement_.GoOnVacating()) out->push_back(*std::move(copy));
    if (!placement_.vacating().busy()) EndJobsWait();
  }

  std::optional<absl::Time> doubt_until_;                       // of slots that rest, from the first Tick on
  std::deque<std::pair<SpaceId, Pins::OfSpace>> cleared_pins_;  // to be ended
  struct DeadWriter {
    InstanceId instance;
    uint64_t serial = 0;  // of its half stores those that are older: what the dead rank hasn't stored of them it never will
  };
  std::deque<DeadWriter> reap_;
  std::deque<std::pair<ChunkIndex, uint64_t>> quiet_;  // doomed half stores (chunk, serial) that have only to be ended
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CORE_H_
