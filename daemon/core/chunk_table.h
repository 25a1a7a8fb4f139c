#ifndef KVIST_DAEMON_CORE_CHUNK_TABLE_H_
#define KVIST_DAEMON_CORE_CHUNK_TABLE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/core/hint.h"
#include "daemon/core/index_image.h"
#include "daemon/core/key_index.h"
#include "storage/base/ids.h"
#include "storage/pool/sections.h"

namespace kvist::core {

enum class ChunkState : uint8_t {
  kFree,  // the place is not in use
  kGhost,  // no bytes; stands for its key because children hang on it (a store that failed), until they go or it is stored again
  kFilling,  // all ranks' slots are reserved, not all are stored
  kSealed,   // all ranks' shards are there: a hit
  kBelow,    // none in slots, all ranks' shards on disk or in a remote store: a hit that must be read first
  kReading,  // of one below: all ranks' slots are reserved, and being read
  kLost,     // its read has failed: detached, and its slots go when no copy has them any more
  kPrivate,  // of a private allocation: slots without a key, detached from the start
};

// Whether there is a copy of a chunk on disk.
enum class DiskCopy : uint8_t {
  kNone,
  kWriting,
  kThere,
  kMoving,  // there, and being written again elsewhere
};

// What a chunk's only child in slots does: it stays, or goes before it (clean_reserve.h), and is in the reserve, or being written for it. Awaited:
// being written, and the chunk itself will be in the reserve when the child is.
enum class LastChild : uint8_t { kStays, kBeingWritten, kAwaited, kWritten };

// Whether there is a copy of a chunk in a remote store, as far as is known here. It may be there unknown: others write there, too; or gone.
enum class RemoteCopy : uint8_t { kNone, kWriting, kThere };

// A chunk of one group in one space: a node of the tree of prefixes. 100 bytes.
//
// A chunk stays in slots as long as anything there needs it: children in slots (so a leased or held chunk keeps its whole prefix), keeps,
//   holds. It stays in the tree as long as it has bytes on this node, children, keeps, or holds: what is in a remote store only is asked for
//   when it is looked up again, for others may have removed it.
// `detached` chunks (cleared) are in the tree but no longer in the index: nobody finds them, and they go when nothing needs them.
struct Chunk {
  ChunkKey key;
  ChunkIndex parent = kNoChunk;
  uint32_t children = 0;        // chunks whose parent this is
  uint32_t residents = 0;       // of those: that have slots, or are being given some
  ChunkIndex older = kNoChunk;  // the eviction policy's own: its neighbours in the policy's order
  ChunkIndex newer = kNoChunk;
  uint32_t history = 0;     // the eviction policy's own: what it remembers of the chunk's uses
  uint32_t generation = 0;  // of the place
  uint32_t keeps = 0;       // leases and pins that end here; of a private one 1, its allocation
  uint32_t holds : 27 = 0;  // copies in flight that end here (loads), or that fill it (stores)
  LastChild last_child : 2 = LastChild::kStays;
  uint32_t clean : 1 = 0;  // it is in its tenant's CleanReserve
  RemoteCopy remote : 2 = RemoteCopy::kNone;
  SpaceId space;
  uint32_t epoch = 0;     // the space's when the chunk was made: an older one has been cleared
  uint32_t position = 0;  // chained groups: in its chain, 0 for the first chunk of a prompt
  GroupId group;
  ChunkState state : 3 = ChunkState::kFree;
  bool detached : 1 = false;
  DiskCopy disk : 2 = DiskCopy::kNone;
  // What the engine last said of it (events.h); forgotten when it is hit.
  ExpectedReuse expected_reuse : 2 = ExpectedReuse::kUnknown;
  bool session_ended : 1 = false;
  StopReason stop_reason : 3 = StopReason::kUnknown;
  uint8_t disk_use : 4 = 0;  // when it was used last, in DiskAges' periods
  SlotRef slot;              // one shard: its slot. Several: index is the number of its run, generation is 0
  // While it is on disk, as `slot`: one shard's place, or the number of a run of places; while it is filling, its number in Fills.
  DiskPlace place;

  // Whether its engine has said that it goes first.
  bool cold() const {
    return expected_reuse == ExpectedReuse::kNever || (session_ended && expected_reuse == ExpectedReuse::kUnknown);
  }
  Hint hint() const { return {session_ended, expected_reuse, stop_reason}; }
  void SetHint(const Hint& said) {
    session_ended = said.session_ended;
    expected_reuse = said.expected_reuse;
    stop_reason = said.stop_reason;
  }
  void ForgetHint() { SetHint({}); }
  bool on_disk() const { return disk == DiskCopy::kThere || disk == DiskCopy::kMoving; }
  // Whether its only bytes are in a remote store: then it is known as long as something here needs it.
  bool only_remote() const { return state == ChunkState::kBelow && !on_disk(); }
  bool has_slots() const {
    return state == ChunkState::kFilling || state == ChunkState::kSealed || state == ChunkState::kReading ||
           state == ChunkState::kLost || state == ChunkState::kPrivate;
  }
  // Whether it is a hit, of whatever tier.
  bool whole() const { return state == ChunkState::kSealed || state == ChunkState::kBelow || state == ChunkState::kReading; }
  // Whether something needs it in its slots, or at all.
  bool busy() const { return residents > 0 || keeps > 0 || holds > 0; }
  // Whether nothing does, or only a child that goes before it.
  bool goes() const { return (residents == 0 || last_child != LastChild::kStays) && keeps == 0 && holds == 0; }
  bool needed() const { return children > 0 || keeps > 0 || holds > 0; }
};
static_assert(sizeof(Chunk) == 100, "128 bytes of index per chunk and shard are promised (DESIGN.md section 4)");
static_assert(kImageVersion == 3, "a change of Chunk is a new version (index_image.h)");

// All chunks, found by (space, group, key). Places are stable; memory grows section by section, never in one large step.
// Threads: one.
class ChunkTable {
 public:
  ChunkTable(KeyHash hash, pool::Sections* memory) : hash_(hash), memory_(*memory) {}

  Chunk& operator[](ChunkIndex i) { return sections_[i / kChunksPerSection][i % kChunksPerSection]; }
  const Chunk& operator[](ChunkIndex i) const { return sections_[i / kChunksPerSection][i % kChunksPerSection]; }

  // A new ghost, in the index and hanging on `parent`.
  ChunkIndex Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent, uint32_t epoch);
  // A new ghost without a key, detached.
  ChunkIndex AddPrivate(SpaceId space, GroupId group);
  // Takes a chunk out of the index; it stays in the tree.
  void Detach(ChunkIndex i);
  // Frees the place of a chunk that nothing needs and that has no bytes. Its parent, which loses a child, is returned.
  ChunkIndex Remove(ChunkIndex i);

  ChunkIndex Find(SpaceId space, GroupId group, const ChunkKey& key) const;
  // The hash of the chunk's name: the same when it is stored again.
  uint32_t NameHash(const Chunk& chunk) const { return hash_(chunk.space, chunk.group, chunk.key); }
  // Asks the processor for the chunk itself, to be changed.
  void PrefetchLines(ChunkIndex i) const {
    const auto* chunk = reinterpret_cast<const char*>(&(*this)[i]);
    __builtin_prefetch(chunk, /*rw=*/1);
    __builtin_prefetch(chunk + sizeof(Chunk) - 1, 1);
  }
  // And for what Remove(i) and the eviction of i will touch, so that it comes all at once: its place in the index, its parent.
  // Returns NameHash.
  uint32_t PrefetchRemoval(ChunkIndex i) const;
  // And for what Find and Add will touch, of up to kPrefetched names; their NameHashes.
  static constexpr size_t kPrefetched = 16;
  std::array<uint32_t, kPrefetched> PrefetchNames(SpaceId space, GroupId group, std::span<const ChunkKey> keys) const;
  // As Find, but kNoChunk unless the chunk is a hit by itself: whole, and of `epoch`. For groups whose chunks don't hang on others.
  ChunkIndex FindVisible(SpaceId space, GroupId group, uint32_t epoch, const ChunkKey& key) const;

  // Fills `path` with the places of the leading keys whose chunks are whole, of `epoch`, and each the child of the one before (keys
  // come from clients: a key that hangs elsewhere is no hit). 512 random chunks cost 512 cache misses, so they are asked for in
  // batches ahead of use.
  void FindPrefix(SpaceId space, GroupId group, uint32_t epoch, std::span<const ChunkKey> keys,
                  std::vector<ChunkIndex>* path) const;

  // The work of an event is counted here: one for each chunk that is looked for or changed, and for each slot that is taken or
  // given back. What isn't done by this class is charged by who does it. A count, so that what an event may cost is decided and
  // tested without a clock.
  void Charge(uint64_t units) const { work_ += units; }
  uint64_t work() const { return work_; }

  uint64_t size() const { return size_; }        // chunks in use, detached ones too
  ChunkIndex places() const { return places_; }  // all places ever made: [0, places())
  uint64_t memory_bytes() const;

 private:
  static bool Visible(const Chunk& chunk, uint32_t epoch);
  // A free place, now a ghost that nothing leads to.
  ChunkIndex Place(SpaceId space, GroupId group);

  KeyHash hash_;
  KeyIndex index_;
  pool::Sections& memory_;
  std::vector<Chunk*> sections_;
  ChunkIndex places_ = 0;
  ChunkIndex free_ = kNoChunk;  // free places, chained by `parent`
  uint64_t size_ = 0;
  mutable uint64_t work_ = 0;  // a search is work, too, and changes nothing else
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CHUNK_TABLE_H_
