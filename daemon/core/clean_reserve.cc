#include "daemon/core/clean_reserve.h"

#include "storage/base/check.h"

namespace kvist::core {

void CleanReserve::Add(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(!Knows(i) && Evictable(chunk));
  chunk.clean = 1;
  chunk.older = last_;
  chunk.newer = kEnd;
  (last_ == kEnd ? first_ : chunks_[last_].newer) = i;
  last_ = i;
  bytes_ += bytes_of_(i);
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

ChunkIndex CleanReserve::NextOnDisk() {
  const ChunkIndex first = first_;
  if (first == kEnd) return kNoChunk;
  Leave(first);
  return first;
}

ChunkIndex CleanReserve::NextVictim() {
  if (const ChunkIndex clean = NextOnDisk(); clean != kNoChunk) return clean;
  passed_.clear();
  ChunkIndex victim = inner_->NextVictim();
  while (victim != kNoChunk && chunks_[victim].disk != DiskCopy::kThere && passed_.size() < kLooks) {
    passed_.push_back(victim);
    victim = inner_->NextVictim();
  }
  if (passed_.empty()) return victim;
  chunks_.Charge(passed_.size());
  if (victim == kNoChunk || chunks_[victim].disk != DiskCopy::kThere) {
    if (victim != kNoChunk) inner_->Exposed(victim);
    victim = passed_.front();
    passed_.front() = kNoChunk;
  }
  // Back to where they were, so that the first is the first again.
  for (size_t i = passed_.size(); i-- > 0;) {
    if (passed_[i] != kNoChunk) inner_->Exposed(passed_[i]);
  }
  return victim;
}

}  // namespace kvist::core
