// What the core tells those who watch where its chunks are, beside what Placement notes.

#include <algorithm>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

uint32_t Core::Where(SpaceId space, GroupId group, std::span<const ChunkKey> keys, std::span<uint8_t> tiers) const {
  KVIST_CHECK(keys.size() <= kKeysMax && tiers.size() >= keys.size());
  uint32_t found = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i % ChunkTable::kPrefetched == 0)
      chunks_.PrefetchNames(space, group, keys.subspan(i, std::min<size_t>(keys.size() - i, ChunkTable::kPrefetched)));
    tiers[i] = 0;
    const ChunkIndex at = chunks_.Find(space, group, keys[i]);
    if (at == kNoChunk) continue;
    const Chunk& chunk = chunks_[at];
    const bool orphan = chunk.parent != kNoChunk && chunks_[chunk.parent].detached;  // no lookup gets there
    if (orphan || !placement_.IsFound(chunk)) continue;
    tiers[i] = Placement::Where(chunk).tiers;
    found += tiers[i] != 0;
  }
  return found;
}

uint64_t Core::ReadChunks(uint64_t cursor, uint32_t most, std::vector<ChunkWhere>* chunks) const {
  const uint64_t places = chunks_.places();
  const uint64_t end = std::min(places, cursor + uint64_t{kPlacesRead} * most);
  for (; cursor < end && most > 0; ++cursor) {
    const Chunk& chunk = chunks_[static_cast<ChunkIndex>(cursor)];
    if (chunk.state == ChunkState::kFree || !placement_.IsFound(chunk)) continue;
    chunks->push_back(Placement::Where(chunk));
    --most;
  }
  return cursor >= places ? kReadAll : cursor;
}

}  // namespace kvist::core
