// What the core tells those who watch where its chunks are, beside what Placement notes.

#include <algorithm>

#include "daemon/core/core.h"

namespace kvist::core {

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
