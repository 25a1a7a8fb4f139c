#ifndef KVIST_DAEMON_CORE_EFFECTS_H_
#define KVIST_DAEMON_CORE_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "daemon/core/space_spec.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

// What the core answers: drivers carry effects out in the order in which they come.
namespace kvist::core {

struct SessionAccepted {
  SessionId session;
  SpaceId space;
};
struct SessionRefused {
  SessionId session;
  absl::Status why;
};
struct SessionDrained {
  SessionId session;
};
struct LookupAnswered {
  SessionId session;
  RequestTag tag;
  uint32_t chunks = 0;  // the position
  uint32_t coming = 0;  // chunks (of all groups) that it needs and that are being read; a load waits for them
  LeaseId lease =
      {};  // none when nothing more was found than it has, no lease was asked for, or the instance's budget is spent
  bool waited = false;  // a store beyond the node was asked first: this isn't the event that asked
};
// Copy between slots[i] and the pages of the chunk_of[i]-th chunk that was asked for. The slots are held until CopyFinished. A load of
// slots that are still being read takes from each what is there (ReadStarted), and ends when a read fails.
struct CopyStarted {
  OpId op;
  SessionId session;
  RequestTag tag;
  Direction direction = Direction::kLoad;
  std::vector<SlotRef> slots;
  std::vector<uint32_t> chunk_of;
  std::vector<ChunkRef> coming = {};  // [slot] the chunk that is being read into it, or none; empty: none is
  bool by_layer = false;              // as the lookup said
};
// The copy waits for chunks whose reads haven't begun, for want of slots: its CopyStarted comes later, or its OpEnded.
struct CopyWaits {
  OpId op;
  SessionId session;
  RequestTag tag;
};
struct CopyCancelled {
  OpId op;
};
// Write a chunk's shards from its slots [shard], which are held until WriteFinished, to a tier below. To a disk: encoded by `method`, if it isn't
// 0 and that makes it smaller; else as it is, or, if it `may_stay`, not at all. Beyond the node `method` is how it lies on disk, 0 if it isn't there:
// what somebody had encoded goes there encoded, without a further loss.
struct WriteStarted {
  ChunkRef chunk;
  SpaceId space;
  GroupId group;
  ChunkKey key;
  std::optional<ChunkKey> parent;
  uint32_t position = 0;  // in its chain
  std::vector<SlotRef> slots;
  Tier to = Tier::kSsd;
  Hint hint = {};
  uint8_t method = 0;
  bool may_stay = false;
};
// Copy the bytes of slots to other ones, each of `bytes`; then SlotsCopied. One at a time. Nobody writes to either meanwhile.
struct SlotsCopyStarted {
  Bytes bytes;
  std::vector<std::pair<SlotRef, SlotRef>> slots;  // from, to
};
// Read a chunk's shards, from a disk from their places, into its slots [shard], which are held until ReadFinished. Those with `by_layer` of
// one event are read layer by layer, the first layer of all of them before anything else.
struct ReadStarted {
  ChunkRef chunk;
  SpaceId space;
  GroupId group;
  ChunkKey key;
  uint32_t position = 0;  // in its chain
  bool by_layer = false;
  std::vector<DiskPlace> places;
  std::vector<SlotRef> slots;
  Tier from = Tier::kSsd;
  DiskForm form = {};  // of what lies at its places
};
// Encode what the remote store has of these chunks another way. Answers: Recoded, the last time with `ended`. And stop that.
struct RecodeStarted {
  JobId job;
  SpaceId space;
  std::vector<ChunkKey> keys;
  uint8_t method = 0;
};
struct RecodeStopped {
  JobId job;
};
// These chunks, of every group, are to be removed from the remote store. Answer: RemoteForgot.
struct RemoteForgotten {
  JobId job;
  SpaceId space;
  std::vector<ChunkKey> keys;
};
// Which of these chunks, of every group, does the remote store have? Answer: RemoteFound.
struct RemoteAsked {
  AskId ask;
  SpaceId space;
  std::vector<ChunkKey> keys;
  absl::Time since;      // the lookup has waited from then on
  bool patient = false;  // nobody waits but a job: it may take as long as a read
};
// Nothing leads to these places any more.
struct PlacesFreed {
  struct Chunk {
    SpaceId space;
    GroupId group;
    ChunkKey key;
    uint32_t position = 0;
    absl::InlinedVector<DiskPlace, 1> places;  // [shard]
    bool replaced = false;                     // it is on disk elsewhere
    bool row_stays = false;                    // they couldn't be read now: a later daemon may find them all the same
    DiskForm form = {};
  };
  std::vector<Chunk> chunks;
};
// A later daemon is to find these pins of the space as they are now. While there is a disk.
struct PinsNoted {
  SpaceId space;
  std::vector<PinNote> notes;
};
// A later daemon is to know when these were used; as advice: it may be lost. Of a period that is new it is told though there are no uses.
struct UsesNoted {
  DiskUses noted;
};
// To PinFound: nothing is kept for it.
struct PinLost {
  SpaceId space;
  PinName pin;
  absl::Status why;
};
// What was written or is being written of the space (of all when absent), to this tier (to any, when absent), must not be found by a later
// daemon. Answer: ClearKept of each tier.
struct SpaceCleared {
  JobId job;
  std::optional<SpaceId> space;
  std::optional<Tier> tier = {};
};
// No later daemon may find what was written or is being written of these chunks; it may be read all the same until PlacesFreed. Nor may it
// find those of the space whose rows were to stay. Answer: ClearKept.
struct ChunksHidden {
  struct Chunk {
    GroupId group;
    ChunkKey key;
    uint32_t position = 0;
  };
  JobId job;
  SpaceId space;
  std::vector<Chunk> chunks;
};
// To FlushAsked: so many chunks survive the daemon. Unavailable: some don't, for the disk takes no writes, or failed.
struct Flushed {
  std::optional<SessionId> session;
  RequestTag tag;
  absl::Status status;
  uint64_t chunks = 0;
};
struct OpEnded {
  SessionId session;
  RequestTag tag;
  absl::Status status;
  uint32_t copied = 0;
  uint32_t skipped = 0;  // stores: there already, or being stored by another
  uint32_t refused = 0;  // stores: no room, the parent is gone, or cleared, failed on another rank or too late meanwhile
};
// To a request that moves no bytes.
struct Answered {
  SessionId session;
  RequestTag tag;
  absl::Status status;
  uint32_t chunks = 0;
  AllocationId allocation;
};
// To an operator's pin, as Answered.
struct PinAnswered {
  RequestTag tag;
  absl::Status status;
  uint32_t chunks = 0;
};
struct JobEnded {
  JobId job;
  JobState how = JobState::kDone;
  uint64_t chunks = 0;
};
// So many chunks held other bytes than were stored, where they lay. Nobody finds them any more.
struct CorruptionFound {
  SpaceId space;
  uint32_t chunks = 0;
  Tier tier = Tier::kDram;
};
// Where a chunk is now, as a lookup would find it: whole in each of these tiers, as far as is known here.
struct ChunkWhere {
  SpaceId space;
  GroupId group;
  ChunkKey key;
  uint8_t tiers = 0;  // TierBit of each; none: it is gone

  friend bool operator==(const ChunkWhere&, const ChunkWhere&) = default;
};
// After ChunksWatched: where those chunks are now that the event has brought to other tiers, each as often as it changed, last the last. All
// other effects of the event come before.
struct ChunksChanged {
  // What was said before is void: a clear has hidden chunks that aren't named, so all is to be read again
  bool again = false;
  std::vector<ChunkWhere> chunks;
};

using Effect =
    std::variant<SessionAccepted, SessionRefused, SessionDrained, LookupAnswered, CopyStarted, CopyWaits, CopyCancelled,
                 OpEnded, Answered, PinAnswered, JobEnded, CorruptionFound, WriteStarted, SlotsCopyStarted, ReadStarted,
                 PlacesFreed, PinsNoted, UsesNoted, PinLost, SpaceCleared, ChunksHidden, Flushed, RemoteAsked,
                 RemoteForgotten, RecodeStarted, RecodeStopped, ChunksChanged>;
using Effects = std::vector<Effect>;

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_EFFECTS_H_
