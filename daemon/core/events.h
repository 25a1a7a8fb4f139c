#ifndef KVIST_DAEMON_CORE_EVENTS_H_
#define KVIST_DAEMON_CORE_EVENTS_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/hint.h"
#include "daemon/core/jobs.h"
#include "daemon/core/loss.h"
#include "daemon/core/space_spec.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

// What the core hears. Drivers (session, movers, rpc) translate the world into events, and effects (effects.h) into the world; nothing else
// passes between them.
namespace kvist::core {

// The client's name of one of its requests: its place on the session's board. The core only hands it back.
using RequestTag = Id<struct RequestTagTag, uint64_t>;

enum class Role : uint8_t { kScheduler, kWorker };
enum class Direction : uint8_t { kLoad, kStore };

// A process of `instance` (named within its tenant) wants to be served. Answer: SessionAccepted or SessionRefused.
struct SessionOpened {
  SessionId session;
  std::string instance;
  Role role = Role::kScheduler;
  Rank rank;  // of a worker
  SpaceSpec space;
  uint32_t near = 0;  // the region of the pool that is nearest to a worker's memory
};

// It has died or hung up. Its leases and allocations are of no use to anybody from now on, and what they keep is free after some
// Ticks; its copies are cancelled, and what waits to be copied ends in Ticks, too. Answer, when all are quiet: SessionDrained.
struct SessionClosed {
  SessionId session;
};

// How far `keys` (a whole chain) can be resumed in all groups at once (UsablePosition, which says how far it looks); leased when
// lease > 0, but for the first `have` chunks, which the engine has itself: they are neither read nor kept for it. Those of them that have
// slots stay as long as deeper ones do, so where both don't fit into the pool nothing is leased. Its loads will be waited for layer by
// layer: then what has to be read for it is read so. What the engine computes sooner than it is read from disk isn't leased, and not a hit
// (CoreOptions::gate). With a remote store that can be reached it is asked for what isn't here, first.
// Answer: LookupAnswered.
struct LookupAsked {
  SessionId session;
  RequestTag tag;
  std::span<const ChunkKey> keys;
  absl::Duration lease;
  uint32_t have = 0;
  bool by_layer = false;
};

// Ends a lease of the session's instance. No answer; unknown leases are ignored.
struct ReleaseAsked {
  SessionId session;
  LeaseId lease;
};

// Chunks [first, first + count) of a lease in one group, all of them needed for its position, into the session's pages. Answer:
// CopyStarted and later OpEnded, or OpEnded at once.
struct LoadAsked {
  SessionId session;
  RequestTag tag;
  LeaseId lease;
  GroupId group;
  uint32_t first = 0;
  uint32_t count = 0;
};

// The session's pages into slots for `keys`, which follow `parent` (absent at the start of a chain; in a group that isn't chained
// it says nothing). More than an event may do (CoreOptions::event_work: slots of all ranks, evictions) is refused. Answers as for
// LoadAsked; ResourceExhausted when nothing is stored because the tenant has ghosts_max ghosts.
struct StoreAsked {
  SessionId session;
  RequestTag tag;
  GroupId group;
  std::optional<ChunkKey> parent;
  std::span<const ChunkKey> keys;
};

// Names a pin in its space. Honest keys are told by the last alone; opaque ones may be the last of several chains.
struct PinName {
  std::string owner;
  ChunkKey key;              // the last that was asked for
  uint32_t asked = 0;        // keys
  bool by_operator = false;  // else `owner` is an engine's instance: the two never meet

  // Of keys, at least one, that were asked for.
  static PinName Of(std::string owner, std::span<const ChunkKey> keys, bool by_operator = false) {
    return {std::move(owner), keys.back(), static_cast<uint32_t>(keys.size()), by_operator};
  }
  auto operator<=>(const PinName&) const = default;
};

// The position of `keys` (as a lookup finds it) stays until it is unpinned, or cleared: pinned by the session's instance, whose
// name is the pin's owner, once more if it was already. What of `keys` isn't there is not pinned; pinning again pins what is there
// then. Answer: Answered with the position; ResourceExhausted when the tenant's pins would take too much.
struct PinAsked {
  SessionId session;
  RequestTag tag;
  std::span<const ChunkKey> keys;
};

// As PinAsked, by an operator for `owner`, in a space that was met; it ends by itself after `lasts`. Asked again it is pinned once all the same,
// and lasts as was said then. Answer: PinAnswered.
struct OperatorPinAsked {
  SpaceId space;
  RequestTag tag;
  std::string owner;
  std::span<const ChunkKey> keys;
  absl::Duration lasts = absl::InfiniteDuration();
};

// A pin as a later daemon is to find it.
struct PinNote {
  PinName pin;
  uint64_t count = 0;                               // how often it was pinned and not unpinned; 0: it is over
  absl::Duration lasts = absl::InfiniteDuration();  // from now on; it ends by itself then
  std::vector<ChunkKey> keys = {};                  // of its position
};

// An earlier daemon has noted this pin (PinsNoted) of a space that was found, and it wasn't over: what is there of its keys stays. It comes before
// DiskTold, behind all chunks. What was pinned or ended under that name since the core began counts, not this. Answer: PinLost, when nothing is
// there, or the tenant's pins would take too much.
struct PinFound {
  SpaceId space;
  PinNote note;
  bool rows_left = false;  // as DiskTold's: then its note stays as it was, though less of it is there
};

// Takes one of the owner's pins of `keys` back; the last one ends it. Unknown ones are ignored. Answer: Answered.
struct UnpinAsked {
  SessionId session;
  RequestTag tag;
  std::span<const ChunkKey> keys;
};

// An operator ends a pin, however often it was pinned. No answer; status() shows it.
struct PinRemoved {
  SpaceId space;
  PinName pin;
};

// What the engine knows of chunks that are there, in all groups: kept with them until they are hit again. At most Core::HintKeysMax
// keys. No answer.
struct HintAsked {
  SessionId session;
  std::span<const ChunkKey> keys;
  Hint hint;
};

// Slots without keys for `chunks` chunks of one group on all ranks, private to the session's instance: for KV that leaves the
// engine and returns. They end with the session. Answer: Answered with an AllocationId; ResourceExhausted when there is no room or
// the instance has its share already, InvalidArgument when it is more than an event may do (CoreOptions::event_work: a unit a chunk
// and shard): then nothing was allocated.
struct AllocateAsked {
  SessionId session;
  RequestTag tag;
  GroupId group;
  uint32_t chunks = 0;
};

// Ends an allocation of the session's instance, now or when its copies are quiet. No answer; unknown ones are ignored.
struct FreeAsked {
  SessionId session;
  AllocationId allocation;
};

// Layers [first_layer, first_layer + layers) of chunks [first, first + count) of an allocation: kStore takes them out of the session's
// pages, kLoad brings back what was taken out completely. Answers as for LoadAsked; copies of the same bytes don't run at once:
// FailedPrecondition, as for what was never taken out.
struct SwapAsked {
  SessionId session;
  RequestTag tag;
  Direction direction = Direction::kStore;
  AllocationId allocation;
  GroupId group;  // the allocation's
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t first_layer = 0;
  uint32_t layers = 0;
};

// All chunks of the session's space that are there now shall survive the daemon: what isn't on disk is written. Without a session: those
// of all spaces. One at a time of a session. Answer: Flushed.
struct FlushAsked {
  std::optional<SessionId> session;
  RequestTag tag;
};

// An engine has computed the KV of `chunks` chunks of one prompt, parts of one included, from position `first` (in chunks) on, and nothing else
// meanwhile. No answer; lookups in its space weigh loading against it.
struct PrefillReported {
  SessionId session;
  double first = 0;
  double chunks = 0;
  absl::Duration took;
};

// The client gives an operation up. Answer: CopyCancelled, and OpEnded once it is quiet.
struct CancelAsked {
  OpId op;
};

// A copy is quiet: nothing touches its slots any more. A store counts only with OK.
struct CopyFinished {
  OpId op;
  absl::Status status;
  // Of a load that has failed: which of CopyStarted's slots hold other bytes than were stored, ascending. Their chunks are dropped.
  std::vector<uint32_t> corrupt = {};
};

// A chunk as the disk driver names it, from when it is written until its places are gone.
using ChunkRef = Handle<struct ChunkRefTag>;

// What lies on disk encoded: how much that is, and how much it is in slots.
struct EncodedOnDisk {
  uint64_t chunks = 0;
  Bytes bytes{};  // that their shards take there
  Bytes slot_bytes{};
};

// How a chunk lies on disk: as in slots, or encoded by a method that the disk's driver knows.
struct DiskForm {
  uint8_t method = 0;  // 0: as in slots
  Bytes bytes{};       // that each shard takes there; 0: as many as its slot

  bool operator==(const DiskForm&) const = default;
};

// The driver of a tier has written a chunk; or it hasn't, and nothing of it touches its slots any more. ResourceExhausted: there is no room
// now; InvalidArgument: it can't take any of that space; DataLoss: its slots hold other bytes than were stored (told of what is encoded, or
// goes beyond the node); AlreadyExists: encoded as was asked it would be no smaller, so it stays as it is.
struct WriteFinished {
  ChunkRef chunk;
  absl::Status status;
  std::vector<DiskPlace> places = {};  // [shard] of a disk: as the chunk is found there from now on
  Tier to = Tier::kSsd;
  DiskForm form = {};  // on disk
  Loss loss = {};      // where it is encoded with one
};

// The slots of a chunk hold what was stored, every checksum is right; or there it is of no use. Nobody writes to the slots any more.
// NotFound: a remote store hasn't got it any more. DataLoss: what lies there isn't what was stored.
struct ReadFinished {
  ChunkRef chunk;
  absl::Status status;
};

// What SlotsCopyStarted asked for is done.
struct SlotsCopied {};

// A tier (all disks together) has read so many bytes in a time in which there was always something for it to read; before which there was
// nothing, when it is from_rest.
struct TierRead {
  Bytes bytes{};
  bool from_rest = false;
  absl::Duration took;
  Tier from = Tier::kSsd;
};

// Names a question to the remote store.
using AskId = Handle<struct AskTag>;

// To RemoteAsked, in the time that it gave: what of it is there, as far as its store can be believed. Not OK: it didn't say.
struct RemoteFound {
  AskId ask;
  absl::Status status;
  std::vector<bool> there = {};  // [group * keys + key]
};

// To RemoteForgotten: the remote store hasn't got them any more. Or it couldn't be told, and may have: a clear's are tried again.
struct RemoteForgot {
  JobId job;
  SpaceId space;
  std::vector<ChunkKey> keys;
  absl::Status status = {};
};

// Another node has cleared a space (all, when absent) in the remote store: what was offered to it before isn't to be written any more, and what
// was there isn't.
struct RemoteCleared {
  std::optional<SpaceDigest> space;
};

// Whether the remote store can be asked and written to; until this is said it can't.
struct RemoteReachable {
  bool reachable = false;
};

// A space that was found on disk. Core::FindSpace says whether it could be opened (Spaces::Open has the errors).
struct SpaceFound {
  SpaceSpec spec;
};

// Chunks of a space that were found on disk, parents before children; at most Core::kPlacesMax. They are hits from now on, but those
// that the core has already, that hang on nothing, or whose space was cleared since the core began: these are freed.
struct ChunksFound {
  struct Found {
    GroupId group;
    ChunkKey key;
    std::optional<ChunkKey> parent;  // in chained groups
    uint32_t position = 0;           // in its chain
    std::vector<DiskPlace> places;   // [shard]
    Hint hint = {};                  // as it was when it was written
    DiskForm form = {};
  };
  SpaceId space;
  std::vector<Found> chunks;
};

// Chunks that were used in a period of the disk's (DiskAges), and may be there still.
struct DiskUses {
  struct Use {
    SpaceId space;
    GroupId group;
    ChunkKey key;
  };
  int32_t period = 0;  // not above 0 in what is found
  Bytes written{};     // in that period until then; 0 where it is over
  std::vector<Use> uses;
};

// An earlier daemon has noted these (UsesNoted): at most Core::kPlacesMax, behind all chunks. When their room is wanted they are as if they had been used
// so long ago in this daemon's time.
struct UsesFound {
  DiskUses found;
};

// Segments are to be used again: what lies at these places, at most Core::kPlacesMax, is freed, or written again elsewhere and then
// freed when it was used lately. What can't be just now (it is being read) is to be asked for again.
struct PlacesWanted {
  struct Record {
    SpaceId space;
    GroupId group;
    ChunkKey key;
    DiskPlace place;  // of one of its shards
  };
  std::vector<Record> records;
};

// What lies at these places, at most Core::kPlacesMax, can't be read any more: it is forgotten, and counts as durable no longer. What is
// waited for, read or written again just now is when that has ended.
struct PlacesLost {
  std::vector<PlacesWanted::Record> records;
  // It isn't what was written, or nothing is; else the disk failed, and it was given up with what lay beside it.
  bool damaged = true;
};

// What this job has cleared (SpaceCleared, or one ChunksHidden) is durable in a tier: no restart finds it there. Or it can't be made durable,
// and `status` says why.
struct ClearKept {
  JobId job;
  Tier in = Tier::kSsd;
  absl::Status status = {};
};

// Whether the disk takes writes: not when it is full or fails. Until this is said it isn't ready for them: flushes wait.
struct DiskWritable {
  bool writable = false;
};

// All that lies on disk has been told (ChunksFound). A core that has taken chunks over waits for this before it writes any.
struct DiskTold {
  // It has kept rows of chunks that can't be read just now, and didn't name them: a clear hides them with their space's others.
  bool rows_left = false;
};

// Everything of `space` (of all spaces when absent) goes: at once invisible, freed in slices by a job of that id, which must be
// new, while there is a place for one (Jobs::full). Answer, when the job has ended: JobEnded.
struct ClearAsked {
  JobId job;
  std::optional<SpaceId> space = {};
  std::string request = {};  // as in Job, as are
  bool resumed = false;
  uint64_t what = 0;
};

// What a prompt of `keys` (at most Core::ClearKeysMax, at least one) has in a space that was met goes, in all groups: from now on no lookup
// finds it, also where other prompts begin with it; what hangs on it goes with it, and so do pins of any of it. A job as ClearAsked's frees
// it, and ends when no restart finds it. Answer, then: JobEnded.
struct PromptClearAsked {
  JobId job;
  SpaceId space;
  std::span<const ChunkKey> keys;
  std::string request = {};
  bool resumed = false;
  uint64_t what = 0;
};

// One tier gives up what it has: of a prompt of `keys` (kKeysMax at most) in a space that was met, or without keys of all of that space (of all,
// when absent), by a job as ClearAsked's; what other tiers have of it stays. kDram: slots that nobody needs are freed, and what lies nowhere
// else is gone. kSsd: no restart finds there what was there when this was asked for; what is being read is waited for. kRemote: the store
// forgets it, for all nodes. What is in use, and what is written anew since, stays. Answer, in the end: JobEnded.
struct TierClearAsked {
  JobId job;
  Tier tier = Tier::kDram;
  std::optional<SpaceId> space = {};
  std::span<const ChunkKey> keys = {};
  std::string request = {};
  bool resumed = false;
  uint64_t what = 0;
};

// What of a prompt of `keys` (kKeysMax at most) is there in a space that was met is to be in another tier, by a job as ClearAsked's. It
// isn't used by that, and what is in use meanwhile isn't moved. From kDram to kRemote: as to kSsd; from kSsd to
// there through slots, which are freed. From kDram to kSsd: what isn't on disk yet is written, and slots that nobody
// needs are freed. From kSsd to kDram: it is read, as far as there is room: nothing that is leased goes for it, and it takes no more than a
// lease may; then its places on disk are freed. From kRemote to kDram as from kSsd, and to kSsd through slots, which are freed; then the store
// forgets it, for all nodes. `keep_source`: nothing is freed or forgotten. Answer, in the end: JobEnded.
struct MoveAsked {
  JobId job;
  JobKind kind = JobKind::kMove;  // or kPrefetch: from kSsd to kDram, keeping the source
  SpaceId space;
  std::span<const ChunkKey> keys;
  Tier from = Tier::kSsd;
  Tier to = Tier::kDram;
  bool keep_source = false;
  std::string request = {};
  bool resumed = false;
  uint64_t what = 0;
};

// A tenant's slots are at most so many bytes from now on; absent: the whole pool. What it has above that goes with its next stores.
struct QuotaSet {
  std::string tenant;
  std::optional<Bytes> bytes;
};

// A job is to stop where it is. What a clear has not freed by then stays invisible, and goes by eviction like other chunks, or by
// the next clear; of a prompt a restart may find some, and the remote store have what it couldn't be told to forget. Answer: JobEnded; none when no
// such job runs.
struct JobCancelAsked {
  JobId job;
};

// What a tier below has of a prompt of `keys` (kKeysMax at most) in a space that was met is to be encoded by `method`, which the tier's
// driver knows, or by none, by a job as ClearAsked's. In the remote store its driver does it; on disk it is read into slots, unless it is there,
// and written again, and slots that it has only passed through are freed. Answer, in the end: JobEnded.
struct RecodeAsked {
  JobId job;
  JobKind kind = JobKind::kCompress;  // or kDecompress
  Tier tier = Tier::kRemote;          // or kSsd
  SpaceId space;
  std::span<const ChunkKey> keys;
  uint8_t method = 0;
  std::string request = {};
  bool resumed = false;
  uint64_t what = 0;
};

// How far that has come: counts as in Job.
struct Recoded {
  JobId job;
  uint64_t done = 0;  // chunks, of all groups
  uint64_t chunks = 0, already = 0, left = 0;
  Bytes bytes{}, bytes_after{};
  Loss loss = {};
  bool ended = false;
  absl::Status status = {};  // why before its end
};

// The clock. Expires leases and half stores and goes on with long work, a slice at a time.
struct Tick {
  absl::Time now;
};

// Somebody wants to know which chunks are where: from now on the core says what changes (ChunksChanged). Core::ReadChunks says how it is.
struct ChunksWatched {};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_EVENTS_H_
