#include "daemon/core/clean_reserve.h"

#include "storage/base/check.h"

namespace kvist::core {

void CleanReserve::Add(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(!Knows(i) && Evictable(chunk));
  if (chunk.last_child == LastChild::kBeingWritten) return;
  chunk.clean = 1;
  chunk.older = last_;
  chunk.newer = kEnd;
  (last_ == kEnd ? first_ : chunks_[last_].newer) = i;
  last_ = i;
  bytes_ += bytes_of_(i);
  GoesBeforeParent(i, LastChild::kWritten);
}

bool CleanReserve::Leave(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (!chunk.clean) return false;
  (chunk.older == kEnd ? first_ : chunks_[chunk.older].newer) = chunk.newer;
  (chunk.newer == kEnd ? last_ : chunks_[chunk.newer].older) = chunk.older;
  chunk.older = chunk.newer = kNoChunk;
  chunk.clean = 0;
  bytes_ -= bytes_of_(i);
  return true;
}

void CleanReserve::GoesBeforeParent(ChunkIndex i, LastChild as) {
  const ChunkIndex p = chunks_[i].parent;
  if (p == kNoChunk) return;
  Chunk& parent = chunks_[p];
  if (parent.state != ChunkState::kSealed || parent.detached || parent.residents != 1) return;
  parent.last_child = as;
  chunks_.Charge(1);
  if (Evictable(parent) && !Knows(p)) inner_->Exposed(p);
}

void CleanReserve::Recall(ChunkIndex i) {
  for (ChunkIndex p = chunks_[i].parent; p != kNoChunk && chunks_[p].last_child != LastChild::kStays;
       p = chunks_[p].parent) {
    chunks_[p].last_child = LastChild::kStays;
    chunks_.Charge(1);
    if (!Leave(p)) inner_->Withdrawn(p);
  }
}

void CleanReserve::Used(std::span<const ChunkIndex> path) {
  for (const ChunkIndex i : path) {
    Leave(i);
    if (i != path.back()) chunks_[i].last_child = LastChild::kStays;
  }
  Recall(path.front());
  inner_->Used(path);
}

ChunkIndex CleanReserve::NextLeaf() {
  while (true) {
    const ChunkIndex i = inner_->NextVictim();
    if (i == kNoChunk || chunks_[i].residents == 0) return i;
    chunks_.Charge(1);
  }
}

ChunkIndex CleanReserve::NextOnDisk() {
  if (const ChunkIndex first = first_; first != kEnd) {
    KVIST_CHECK(chunks_[first].residents == 0);
    Leave(first);
    return first;
  }
  ChunkIndex victim = NextLeaf();
  passed_.clear();
  while (victim != kNoChunk && chunks_[victim].disk != DiskCopy::kThere) {
    passed_.push_back(victim);
    victim = passed_.size() < kLooks ? NextLeaf() : kNoChunk;
  }
  chunks_.Charge(passed_.size());
  // Back to where they were, so that the first is the first again.
  for (size_t i = passed_.size(); i-- > 0;) inner_->Exposed(passed_[i]);
  return victim;
}

ChunkIndex CleanReserve::NextVictim() {
  const ChunkIndex on_disk = NextOnDisk();
  return on_disk != kNoChunk ? on_disk : NextLeaf();
}

}  // namespace kvist::core
