#include <cstdint>

#include "daemon/core/eviction_policy.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

// Chunk::older == kNoChunk means "not in the list"; the ends are marked by this instead, so that one word tells membership.
constexpr ChunkIndex kEnd = kNoChunk - 1;

class LruLeaves : public EvictionPolicy {
 public:
  explicit LruLeaves(ChunkTable* chunks) : chunks_(*chunks) {}

  void Sealed(ChunkIndex) override {}

  void Used(std::span<const ChunkIndex> path) override {
    for (const ChunkIndex i : path) Unlink(i);
    Returned(path.back());
  }

  void Returned(ChunkIndex i) override {
    Unlink(i);
    Chunk& chunk = chunks_[i];
    if (chunk.cold()) return Exposed(i);
    chunk.older = newest_;
    chunk.newer = kEnd;
    (newest_ == kEnd ? oldest_ : chunks_[newest_].newer) = i;
    newest_ = i;
  }

  void Exposed(ChunkIndex i) override {
    if (Knows(i)) return;  // by a later use of its own
    Chunk& chunk = chunks_[i];
    chunk.newer = oldest_;
    chunk.older = kEnd;
    (oldest_ == kEnd ? newest_ : chunks_[oldest_].older) = i;
    oldest_ = i;
  }

  void Withdrawn(ChunkIndex i) override { Unlink(i); }

  void Hinted(ChunkIndex i) override {
    if (Knows(i) && chunks_[i].cold()) Returned(i);
  }

  void Dropped(ChunkIndex) override {}

  void Evicted(ChunkIndex) override {}

  ChunkIndex NextVictim() override {
    while (oldest_ != kEnd) {
      const ChunkIndex i = oldest_;
      Unlink(i);
      if (Evictable(chunks_[i])) return i;
    }
    return kNoChunk;
  }

  bool Knows(ChunkIndex i) const override { return chunks_[i].older != kNoChunk; }

  uint64_t memory_bytes() const override { return 0; }

 private:
  void Unlink(ChunkIndex i) {
    Chunk& chunk = chunks_[i];
    if (chunk.older == kNoChunk) return;
    (chunk.older == kEnd ? oldest_ : chunks_[chunk.older].newer) = chunk.newer;
    (chunk.newer == kEnd ? newest_ : chunks_[chunk.newer].older) = chunk.older;
    chunk.older = kNoChunk;
    chunk.newer = kNoChunk;
  }

  ChunkTable& chunks_;
  ChunkIndex oldest_ = kEnd;
  ChunkIndex newest_ = kEnd;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruLeaves(ChunkTable* chunks) { return std::make_unique<LruLeaves>(chunks); }

}  // namespace kvist::core
