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
  if (const ChunkIndex first = first_; first != kEnd) {
    Leave(first);
    return first;
  }
  ChunkIndex victim = inner_->NextVictim();
  passed_.clear();
  while (victim != kNoChunk && chunks_[victim].disk != DiskCopy::kThere) {
    passed_.push_back(victim);
    victim = passed_.size() < kLooks ? inner_->NextVictim() : kNoChunk;
  }
  chunks_.Charge(passed_.size());
  // Back to where they were, so that the first is the first again.
  for (size_t i = passed_.size(); i-- > 0;) inner_->Exposed(passed_[i]);
  return victim;
}

ChunkIndex CleanReserve::NextVictim() {
  const ChunkIndex on_disk = NextOnDisk();
  return on_disk != kNoChunk ? on_disk : inner_->NextVictim();
}

}  // namespace kvist::core
