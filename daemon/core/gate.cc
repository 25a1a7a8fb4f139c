// Load or recompute: what lies on disk is left alone where the engine computes it sooner than the disk reads it.
//
// Computing n chunks from position p on costs a * n + b * n * (p + n / 2): attention looks at all that is before. Reading costs its bytes, and
// what waits for the disk already. Both are learned (LearnedCost): from what engines of the space report, and from how long the disk was
// busy. While either is unknown all is loaded.
//
// All or nothing: the next chunk costs as much to read as the last one, and more to compute, so where the first of them is worth a load
// the rest is, too, and what is lost by loading too many is less than what the last ones save. DRAM isn't weighed: copying a chunk takes
// less than computing it in any engine that has reason to keep KV at all.

#include <algorithm>

#include "daemon/core/core.h"

namespace kvist::core {
namespace {

// A hybrid space's shorter position may need other chunks that are on disk; so often one is looked for that is worth it.
constexpr int kTries = 4;

}  // namespace

void Core::On(const PrefillReported& event, Effects*) {
  const Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  spaces_[session->space].computing.Learn(event.chunks, event.chunks * (event.first + event.chunks / 2),
                                          absl::ToDoubleSeconds(event.took));
}

void Core::On(const DiskRead& event, Effects*) {
  reading_cost_.Learn(static_cast<double>(event.bytes.value), event.from_rest ? 1 : 0, absl::ToDoubleSeconds(event.took));
}

Core::ToRead Core::WhatIsToRead(const Session& session, uint32_t position, uint32_t have) const {
  ToRead found{.first = position};
  const Space& space = spaces_[session.space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t g = 0; g < groups; ++g) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{g});
    uint32_t at = space.spec.groups[g].reuse.FirstNeeded(position);
    for (const ChunkIndex i : needed) {
      const ChunkState state = chunks_[i].state;
      if (at >= have && (state == ChunkState::kOnDisk || state == ChunkState::kReading)) {
        if (state == ChunkState::kOnDisk) {
          found.bytes += space.chunk_bytes(GroupId{g});
          if (at < found.first || found.chunk == kNoChunk) found.chunk = i;
        }
        found.first = std::min(found.first, at);
      }
      ++at;
    }
  }
  return found;
}

Core::Worth Core::WorthLoading(const Session& session, uint32_t position, uint32_t have) {
  const Space& space = spaces_[session.space];
  Worth worth{position};
  if (!options_.gate || !reading_cost_.known() || !space.computing.known()) return worth;
  for (int tries = 0; tries < kTries && worth.position > have && (space.on_disk > 0 || !reading_.empty()); ++tries) {
    const ToRead to_read = WhatIsToRead(session, worth.position, have);
    chunks_.Charge(worth.position - have);
    if (to_read.first == worth.position) break;
    const double chunks = worth.position - to_read.first;
    const double computing = space.computing.Of(chunks, chunks * (to_read.first + chunks / 2));
    const double reading = reading_cost_.Of(static_cast<double>((to_read.bytes + reads_ahead_).value), 1);
    if (reading <= computing) break;
    if (tries == 0) worth.trial = to_read.chunk;
    worth.position = usable_.Shorten(to_read.first);
  }
  counters_.chunks_recomputed += position - worth.position;
  return worth;
}

}  // namespace kvist::core
