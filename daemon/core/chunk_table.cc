#include "daemon/core/chunk_table.h"

#include <algorithm>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

ChunkIndex ChunkTable::Place(SpaceId space, GroupId group) {
  ChunkIndex i = free_;
  if (i != kNoChunk) {
    free_ = (*this)[i].parent;
  } else {
    if (places_ % kChunksPerSection == 0) {
      constexpr Bytes kSection{sizeof(Chunk) * kChunksPerSection};
      sections_.push_back(reinterpret_cast<Chunk*>(memory_.New(static_cast<uint32_t>(ImageSection::kChunks), 0, kSection)));
    }
    i = places_++;
  }
  Chunk& chunk = (*this)[i];
  Charge(1);
  const uint32_t generation = chunk.generation + 1;
  chunk = Chunk{};
  chunk.generation = generation;
  chunk.space = space;
  chunk.group = group;
  chunk.state = ChunkState::kGhost;
  ++size_;
  return i;
}

ChunkIndex ChunkTable::AddPrivate(SpaceId space, GroupId group) {
  const ChunkIndex i = Place(space, group);
  (*this)[i].detached = true;
  return i;
}

ChunkIndex ChunkTable::Add(SpaceId space, GroupId group, const ChunkKey& key, ChunkIndex parent, uint32_t epoch) {
  const ChunkIndex i = Place(space, group);
  Chunk& chunk = (*this)[i];
  chunk.key = key;
  chunk.epoch = epoch;
  chunk.parent = parent;
  if (parent != kNoChunk) {
    ++(*this)[parent].children;
    chunk.position = (*this)[parent].position + 1;
  }
  index_.Insert(hash_(space, group, key), i);
  return i;
}

void ChunkTable::Detach(ChunkIndex i) {
  Chunk& chunk = (*this)[i];
  KVIST_CHECK(!chunk.detached);
  Charge(1);
  index_.Erase(hash_(chunk.space, chunk.group, chunk.key), i);
  chunk.detached = true;
}

ChunkIndex ChunkTable::Remove(ChunkIndex i) {
  Chunk& chunk = (*this)[i];
  KVIST_CHECK(chunk.state == ChunkState::kGhost && !chunk.needed());
  KVIST_CHECK(chunk.older == kNoChunk && chunk.newer == kNoChunk);
  Charge(1);
  if (!chunk.detached) index_.Erase(hash_(chunk.space, chunk.group, chunk.key), i);
  const ChunkIndex parent = chunk.parent;
  if (parent != kNoChunk) --(*this)[parent].children;
  chunk.state = ChunkState::kFree;
  ++chunk.generation;
  chunk.parent = free_;
  free_ = i;
  --size_;
  return parent;
}

ChunkIndex ChunkTable::Find(SpaceId space, GroupId group, const ChunkKey& key) const {
  Charge(1);
  return index_.Find(hash_(space, group, key), [&](ChunkIndex i) {
    const Chunk& chunk = (*this)[i];
    return chunk.key == key && chunk.space == space && chunk.group == group;
  });
}

uint32_t ChunkTable::PrefetchRemoval(ChunkIndex i) const {
  const Chunk& chunk = (*this)[i];
  if (chunk.parent != kNoChunk) PrefetchLines(chunk.parent);
  const uint32_t hash = NameHash(chunk);
  index_.Prefetch(hash);
  return hash;
}

std::array<uint32_t, ChunkTable::kPrefetched> ChunkTable::PrefetchNames(SpaceId space, GroupId group,
                                                                        std::span<const ChunkKey> keys) const {
  std::array<uint32_t, kPrefetched> hashes{};
  for (size_t k = 0; k < std::min(keys.size(), kPrefetched); ++k) {
    hashes[k] = hash_(space, group, keys[k]);
    index_.Prefetch(hashes[k]);
  }
  return hashes;
}

bool ChunkTable::Visible(const Chunk& chunk, uint32_t epoch) {
  return chunk.epoch == epoch &&
         (chunk.whole() || (planted == PlantedBug::kPublishBeforeCompletion && chunk.state == ChunkState::kFilling));
}

ChunkIndex ChunkTable::FindVisible(SpaceId space, GroupId group, uint32_t epoch, const ChunkKey& key) const {
  const ChunkIndex i = Find(space, group, key);
  return i != kNoChunk && Visible((*this)[i], epoch) ? i : kNoChunk;
}

void ChunkTable::FindPrefix(SpaceId space, GroupId group, uint32_t epoch, std::span<const ChunkKey> keys,
                            std::vector<ChunkIndex>* path) const {
  constexpr size_t kBatch = 16;  // 24 us instead of 28 for 512 keys (reference/limits.md)
  uint32_t hashes[2][kBatch];
  const auto prefetch_cells = [&](size_t begin, uint32_t* out) {
    const size_t n = std::min(kBatch, keys.size() - begin);
    for (size_t k = 0; k < n; ++k) {
      out[k] = hash_(space, group, keys[begin + k]);
      index_.Prefetch(out[k]);
    }
  };
  path->clear();
  if (keys.empty()) return;
  prefetch_cells(0, hashes[0]);
  for (size_t begin = 0, turn = 0; begin < keys.size(); begin += kBatch, turn ^= 1) {
    const size_t n = std::min(kBatch, keys.size() - begin);
    for (size_t k = 0; k < n; ++k) {
      const ChunkIndex candidate = index_.Candidate(hashes[turn][k]);
      if (candidate == kNoChunk) continue;
      const auto* chunk = reinterpret_cast<const char*>(&(*this)[candidate]);
      __builtin_prefetch(chunk);
      __builtin_prefetch(chunk + sizeof(Chunk) - 1);
    }
    if (begin + kBatch < keys.size()) prefetch_cells(begin + kBatch, hashes[turn ^ 1]);
    Charge(n);
    for (size_t k = 0; k < n; ++k) {
      const ChunkKey& key = keys[begin + k];
      const ChunkIndex i = index_.Find(hashes[turn][k], [&](ChunkIndex c) {
        const Chunk& chunk = (*this)[c];
        return chunk.key == key && chunk.space == space && chunk.group == group;
      });
      if (i == kNoChunk) return;
      const Chunk& chunk = (*this)[i];
      if (!Visible(chunk, epoch) || chunk.parent != (path->empty() ? kNoChunk : path->back())) return;
      path->push_back(i);
    }
  }
}

uint64_t ChunkTable::memory_bytes() const {
  return sections_.size() * kChunksPerSection * sizeof(Chunk) + index_.memory_bytes();
}

}  // namespace kvist::core
