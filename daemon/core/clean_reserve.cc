#include "daemon/core/clean_reserve.h"

#include <utility>

#include "storage/base/check.h"

namespace kvist::core {

// ---- The list ---------------------------------------------------------------------------------------------------------------

void CleanReserve::Link(ChunkIndex i, ChunkIndex older, ChunkIndex newer) {
  Chunk& chunk = chunks_[i];
  chunk.clean = 1;
  chunk.older = older;
  chunk.newer = newer;
  (older == kEnd ? first_ : chunks_[older].newer) = i;
  (newer == kEnd ? last_ : chunks_[newer].older) = i;
  bytes_ += bytes_of_(i);
}

// Whether it was in the list.
bool CleanReserve::Leave(ChunkIndex i) {
  if (i == taken_) taken_ = kNoChunk;
  Chunk& chunk = chunks_[i];
  if (chunk.last_child == LastChild::kAwaited) SetLastChild(i, LastChild::kBeingWritten);
  if (!chunk.clean) return false;
  (chunk.older == kEnd ? first_ : chunks_[chunk.older].newer) = chunk.newer;
  (chunk.newer == kEnd ? last_ : chunks_[chunk.newer].older) = chunk.older;
  chunk.older = chunk.newer = kNoChunk;
  chunk.clean = 0;
  bytes_ -= bytes_of_(i);
  return true;
}

void CleanReserve::Add(ChunkIndex i) {
  KVIST_CHECK(!Knows(i) && Evictable(chunks_[i]));
  while (true) {
    if (const LastChild child = chunks_[i].last_child; child == LastChild::kBeingWritten || child == LastChild::kAwaited)
      return SetLastChild(i, LastChild::kAwaited);
    Link(i, last_, kEnd);
    const ChunkIndex p = chunks_[i].parent;
    const bool awaited = p != kNoChunk && chunks_[p].last_child == LastChild::kAwaited;
    GoesBeforeParent(i, LastChild::kWritten);
    if (!awaited || !Evictable(chunks_[p])) return;  // it is being moved on the disk, say: added when that has ended
    i = p;
  }
}

// ---- Chains -----------------------------------------------------------------------------------------------------------------

void CleanReserve::SetLastChild(ChunkIndex i, LastChild what) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(!chunk.clean || what == LastChild::kStays || what == LastChild::kWritten);
  if (chunk.last_child == LastChild::kAwaited) awaiting_ -= bytes_of_(i);
  if (what == LastChild::kAwaited) awaiting_ += bytes_of_(i);
  above_ += what != LastChild::kStays;
  above_ -= chunk.last_child != LastChild::kStays;
  chunk.last_child = what;
}

void CleanReserve::GoesBeforeParent(ChunkIndex i, LastChild as) {
  const ChunkIndex p = chunks_[i].parent;
  if (p == kNoChunk) return;
  Chunk& parent = chunks_[p];
  chunks_.Charge(1);
  if (parent.state != ChunkState::kSealed || parent.detached || parent.residents != 1) return;
  if (parent.last_child == LastChild::kStays && above_ == kAboveMax) return;
  const bool awaited = parent.last_child == LastChild::kAwaited;
  SetLastChild(p, as);
  if (!awaited && Evictable(parent) && !Knows(p)) inner_->Exposed(p);
}

void CleanReserve::Recall(ChunkIndex i) {
  if (!chunks_[i].has_slots()) return;  // another is its parent's last child
  for (ChunkIndex p = chunks_[i].parent; p != kNoChunk && chunks_[p].last_child != LastChild::kStays;
       p = chunks_[p].parent) {
    SetLastChild(p, LastChild::kStays);
    chunks_.Charge(1);
    if (!Leave(p)) inner_->Withdrawn(p);
  }
}

// ---- What the core says -----------------------------------------------------------------------------------------------------

void CleanReserve::Used(std::span<const ChunkIndex> path) {
  for (const ChunkIndex i : path) {
    Leave(i);
    if (i != path.back()) SetLastChild(i, LastChild::kStays);
  }
  Recall(path.front());
  inner_->Used(path);
}

void CleanReserve::Exposed(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (chunk.clean) return;  // it was added behind the child that has gone
  if (i == taken_ && Evictable(chunk)) {
    taken_ = kNoChunk;
    Link(i, kEnd, first_);
    return;
  }
  Recall(i);
  inner_->Exposed(i);
}

void CleanReserve::Withdrawn(ChunkIndex i) {
  Leave(i);
  Recall(i);
  if (chunks_[i].residents != 1) SetLastChild(i, LastChild::kStays);  // it has got another child
  inner_->Withdrawn(i);
}

void CleanReserve::Hinted(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (!chunk.clean) return inner_->Hinted(i);
  // It keeps its place.
  const ChunkIndex older = std::exchange(chunk.older, kNoChunk), newer = std::exchange(chunk.newer, kNoChunk);
  inner_->Hinted(i);
  chunk.older = older;
  chunk.newer = newer;
}

void CleanReserve::Dropped(ChunkIndex i) {
  Leave(i);
  SetLastChild(i, LastChild::kStays);
  // What is above it stays where it is: its turn has come.
  const ChunkIndex p = chunks_[i].parent;
  if (p != kNoChunk && chunks_[p].residents == 1) SetLastChild(p, LastChild::kStays);
  inner_->Dropped(i);
}

// ---- Victims ----------------------------------------------------------------------------------------------------------------

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
    taken_ = first;
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

void CleanReserve::CheckInvariants(Bytes bytes, Bytes awaiting, uint64_t above) const {
  KVIST_CHECK(bytes_ == bytes && awaiting_ == awaiting && above_ == above);
  for (ChunkIndex i = first_; i != kEnd; i = chunks_[i].newer) {
    KVIST_CHECK(chunks_[i].residents == 0 || chunks_[i].last_child == LastChild::kWritten);
  }
}

}  // namespace kvist::core
