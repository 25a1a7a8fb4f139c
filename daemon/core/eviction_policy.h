#ifndef KVIST_DAEMON_CORE_EVICTION_POLICY_H_
#define KVIST_DAEMON_CORE_EVICTION_POLICY_H_

#include <memory>
#include <span>

#include "daemon/core/chunk_table.h"

namespace kvist::core {

// Decides which chunk goes when room is needed. Only leaves of the tree go (a chunk without its prefix is no hit), so a policy
// orders leaves; it may keep its own words in Chunk::older and Chunk::newer, and nothing else of a chunk is its to change.
//
// The core tells it what happens to chunks; it never decides whether a chunk *may* go: the core asks `evictable` itself.
// Threads: one. Every call is O(1) per chunk named, amortised over calls.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The chunks of one request, from the first of the chain (or a later one) to the deepest, were used just now. A deepest one that is
  // cold (Chunk) goes before all others all the same.
  virtual void Used(std::span<const ChunkIndex> path) = 0;
  // The last child of a sealed chunk was evicted: it is a leaf now, and was last used no later than that child, or as Used said.
  virtual void Exposed(ChunkIndex chunk) = 0;
  // The chunk must not be offered: it is leased, held, or about to go. Used or Exposed bring it back.
  virtual void Withdrawn(ChunkIndex chunk) = 0;

  // The chunk to evict next, or kNoChunk. It is withdrawn by this. Those it meets that are not evictable are forgotten: the
  // core brings them back by Used when what keeps them ends.
  virtual ChunkIndex NextVictim() = 0;

  // Whether the policy would offer this chunk some day; for invariant checks.
  virtual bool Knows(ChunkIndex chunk) const = 0;

 protected:
  // A sealed leaf that nothing needs.
  static bool Evictable(const Chunk& chunk) { return chunk.state == ChunkState::kSealed && !chunk.needed(); }
};

// LRU over leaves (the radix policy of reference/policy.md), exact and O(1).
//
// Keeps one list from oldest to newest use. Using a path puts only its deepest chunk at the newest end and takes the others out:
// a chunk above it was used no earlier, and it gets the right place when it becomes a leaf, because then its last child was
// evicted as the oldest of all: the chunk is either in the list by a later use of its own, or belongs at the oldest end.
std::unique_ptr<EvictionPolicy> MakeLruLeaves(ChunkTable* chunks);

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_EVICTION_POLICY_H_
