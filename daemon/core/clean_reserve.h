#ifndef KVIST_DAEMON_CORE_CLEAN_RESERVE_H_
#define KVIST_DAEMON_CORE_CLEAN_RESERVE_H_

#include <functional>
#include <memory>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/eviction_policy.h"
#include "storage/base/units.h"

namespace kvist::core {

// The order of a tenant's chunks where there is a disk: before all that `inner` orders go those whose slots can be given away at once,
// because they are on disk, too (or the disk can't take them). They are what `inner` would have evicted next when they were written, in that order, so far as nobody has
// used them since: a use puts a chunk back into `inner`'s order.
//
// To `inner` a chunk is gone when it is in the reserve, or being written for it: its parent, if that has no other child in slots, is offered then, though the
// child is still there (Chunk::last_child). So the end of a long chain is written as far up as the reserve wants, not a leaf at a time. What
// keeps or uses a chunk takes those above it back, too.
//
//   chosen (NextUnwritten) -> BeingWritten      -> Add: in the reserve          -> NextOnDisk, NextVictim: evicted
//                             its parent is offered   awaited while its child is still being written, then behind that
//
// Like `inner` it keeps its list in Chunk::older and Chunk::newer; Chunk::clean tells whose list a chunk is in. A chunk in it has no child in slots, or one that
// is in it, too, before it.
// Threads: one.
class CleanReserve final : public EvictionPolicy {
 public:
  // So many chunks at most are offered while a child of theirs is still there: those above a chunk are taken back all at once.
  static constexpr uint64_t kAboveMax = 8192;

  // `bytes`: of a chunk's slots.
  CleanReserve(std::unique_ptr<EvictionPolicy> inner, ChunkTable* chunks, std::function<Bytes(ChunkIndex)> bytes)
      : inner_(std::move(inner)), chunks_(*chunks), bytes_of_(std::move(bytes)) {}

  // A chunk whose slots can be given away, and that NextUnwritten has chosen, or that was written when it had.
  void Add(ChunkIndex chunk);
  // What NextUnwritten has chosen is being written from now on. What comes of it is said by Add, Returned, or whatever uses it.
  void BeingWritten(ChunkIndex chunk) { GoesBeforeParent(chunk, LastChild::kBeingWritten); }
  Bytes bytes() const { return bytes_; }        // in the reserve
  Bytes awaiting() const { return awaiting_; }  // added, but a child of theirs is still being written
  // The victims apart. On disk: the first of the list; where that is empty, of inner's next few one that is there. Unwritten: inner's next,
  // which may be on disk, too, and may have its last child still in slots. kNoChunk: there is none.
  ChunkIndex NextOnDisk();
  ChunkIndex NextUnwritten() { return inner_->NextVictim(); }

  void Sealed(ChunkIndex chunk) override { inner_->Sealed(chunk); }
  void Used(std::span<const ChunkIndex> path) override;
  void Returned(ChunkIndex chunk) override {
    Leave(chunk);
    Recall(chunk);
    inner_->Returned(chunk);
  }
  void Exposed(ChunkIndex chunk) override;
  void Withdrawn(ChunkIndex chunk) override;
  void Hinted(ChunkIndex chunk) override;
  void Evicted(ChunkIndex chunk) override {
    taken_ = kNoChunk;
    inner_->Evicted(chunk);
  }
  void Dropped(ChunkIndex chunk) override;
  void Prefetch(std::span<const uint32_t> names) const override { inner_->Prefetch(names); }
  // One that is on disk, be it before its turn, else inner's next: what isn't written would be lost.
  ChunkIndex NextVictim() override;
  bool Knows(ChunkIndex chunk) const override { return chunks_[chunk].clean || inner_->Knows(chunk); }
  uint64_t memory_bytes() const override { return inner_->memory_bytes(); }
  // Stops the process unless these are what it has counted.
  void CheckInvariants(Bytes bytes, Bytes awaiting, uint64_t above) const;

 private:
  static constexpr ChunkIndex kEnd = kNoChunk - 1;  // of the list: a chunk in it has a neighbour on each side
  static constexpr size_t kLooks = 8;
  bool Leave(ChunkIndex chunk);
  void Link(ChunkIndex chunk, ChunkIndex older, ChunkIndex newer);  // between neighbours
  void SetLastChild(ChunkIndex chunk, LastChild what);
  // It goes before its parent, which is offered if it has no other child in slots.
  void GoesBeforeParent(ChunkIndex chunk, LastChild as);
  // It doesn't: nor do those above it that were offered for that.
  void Recall(ChunkIndex chunk);
  // Of what inner would evict next the first that can go now. Those whose last child is being written are offered again when it has been.
  ChunkIndex NextLeaf();

  const std::unique_ptr<EvictionPolicy> inner_;
  ChunkTable& chunks_;
  const std::function<Bytes(ChunkIndex)> bytes_of_;
  ChunkIndex first_ = kEnd;
  ChunkIndex last_ = kEnd;
  Bytes bytes_{};
  Bytes awaiting_{};
  uint64_t above_ = 0;              // whose last_child isn't kStays
  ChunkIndex taken_ = kNoChunk;     // the last that NextOnDisk took from the front: given back, it is the first again
  std::vector<ChunkIndex> passed_;  // scratch of NextOnDisk
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CLEAN_RESERVE_H_
