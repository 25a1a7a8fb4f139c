#ifndef KVIST_DAEMON_CORE_EVICTION_POLICY_H_
#define KVIST_DAEMON_CORE_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>

#include "daemon/core/chunk_table.h"
#include "daemon/core/planted_bug.h"

namespace kvist::core {

// The policies there are.
enum class Eviction : uint8_t { kLru, kLhd };

// Decides which chunk goes when room is needed. Only leaves go (a chunk without its prefix is no hit: one goes from its slots before
// those above it do), so a policy orders leaves; it may keep its own words in Chunk::older, Chunk::newer and Chunk::history, and nothing
// else of a chunk is its to change.
//
// Lifecycle of a chunk: Sealed -> offered (Used, Returned, Exposed) and taken back (Withdrawn), any number of times -> chosen by
//   NextVictim -> Evicted, or Withdrawn -> Dropped.
// Threads: one. Every call is O(1) per chunk named, amortised over calls; what it does beyond its chunks it charges
// (ChunkTable::Charge).
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // All shards of the chunk are there: it is a hit from now on. It is not offered by this.
  virtual void Sealed(ChunkIndex chunk) = 0;
  // A request hit these chunks just now, from the first of the chain (or a later one) to the deepest, which is offered.
  virtual void Used(std::span<const ChunkIndex> path) = 0;
  // What kept a sealed chunk has ended, and was its last use: it is offered. One that is cold (Chunk) goes before all others.
  virtual void Returned(ChunkIndex chunk) = 0;
  // The last child of a sealed chunk was evicted, or is about to be: it is a leaf now, and was last used no later than that child, or as Used said.
  virtual void Exposed(ChunkIndex chunk) = 0;
  // The chunk must not be offered: it is leased, held, has got a child, or is about to go. Used, Returned or Exposed bring it back.
  virtual void Withdrawn(ChunkIndex chunk) = 0;
  // Its engine has said something new of a chunk (Chunk's hints).
  virtual void Hinted(ChunkIndex chunk) = 0;
  // The chunk that NextVictim chose leaves its slots now. Dropped follows.
  virtual void Evicted(ChunkIndex chunk) = 0;
  // A chunk that was sealed leaves its slots: evicted, cleared or corrupt.
  virtual void Dropped(ChunkIndex chunk) = 0;

  // Chunks of these names (ChunkTable::NameHash) will be sealed soon: what that will touch had better be on its way.
  virtual void Prefetch(std::span<const uint32_t> /*names*/) const {}

  // The chunk to evict next, or kNoChunk. It is withdrawn by this, and offered again when it isn't evicted after all. Those it meets
  // that are not evictable are forgotten: the core brings them back by Returned when what keeps them ends.
  virtual ChunkIndex NextVictim() = 0;

  // Whether the policy would offer this chunk some day; for invariant checks.
  virtual bool Knows(ChunkIndex chunk) const = 0;
  // What it holds beside its words in the chunks.
  virtual uint64_t memory_bytes() const = 0;

 protected:
  // A sealed leaf that nothing needs. Where there is a disk its last child may still be in its slots (CleanReserve).
  static bool Evictable(const Chunk& chunk) {
    if (planted == PlantedBug::kSlotReusedUnderHold) return chunk.state == ChunkState::kSealed && chunk.residents == 0;
    return chunk.state == ChunkState::kSealed && chunk.goes();
  }
};

// LRU over leaves (the radix policy of reference/policy.md), exact and O(1).
//
// Keeps one list from oldest to newest use. Using a path puts only its deepest chunk at the newest end and takes the others out:
// a chunk above it was used no earlier, and it gets the right place when it becomes a leaf, because then its last child was
// evicted as the oldest of all: the chunk is either in the list by a later use of its own, or belongs at the oldest end.
std::unique_ptr<EvictionPolicy> MakeLruLeaves(ChunkTable* chunks);

// LHD over leaves (reference/policy.md): the leaf goes whose room is worth least, in hits that are expected of it per time that it takes
// room, as chunks like it have shown (reuse_rates.h). Alike are chunks of one class: whether they were ever used,
// whether they came in a later turn of a conversation, how deep they lie, whether others followed them, and what their engine said of them. Where classes show no
// difference it is LRU.
//
// Keeps one list for each class and span of last use, from oldest to newest. The spans are the same for all classes and get longer
// with age, so there are some 25; a list is ranked as a whole. The clock is the chunks that were stored: a span of the newest
// kind is 1/16 of a turnover of the cache, and when it ends every list is a little older. Chunks that it evicted are
// remembered, four for each that is there (evicted_chunks.h): only so it learns what it would have gained by keeping them.
std::unique_ptr<EvictionPolicy> MakeLhdLeaves(ChunkTable* chunks);

inline std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(Eviction which, ChunkTable* chunks) {
  return which == Eviction::kLru ? MakeLruLeaves(chunks) : MakeLhdLeaves(chunks);
}

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_EVICTION_POLICY_H_
