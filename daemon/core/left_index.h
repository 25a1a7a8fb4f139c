#ifndef KVIST_DAEMON_CORE_LEFT_INDEX_H_
#define KVIST_DAEMON_CORE_LEFT_INDEX_H_

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/index_image.h"
#include "daemon/core/spaces.h"
#include "storage/pool/sections.h"

namespace kvist::core {

// The index of a core that is gone, read from its sections. They may have been left in the middle of anything, and hold anything:
// nothing here goes out of their bounds, but what a chunk says of itself is the reader's to check (Core::TakeOver).
class LeftIndex {
 public:
  struct Space {
    SpaceDigest digest;
    uint32_t epoch = 0;
    std::string_view description;
    std::vector<std::vector<Bytes>> slot_bytes;  // [group][shard]
    bool has_slots = false;                      // some chunk of it is in slots
  };
  // `sections` must outlive this. Those that aren't what they should be are left out, with all that follow of their kind.
  explicit LeftIndex(std::span<const pool::SectionsOfFile::Section> sections);

  const std::vector<Space>& spaces() const { return spaces_; }  // [SpaceId]
  ChunkIndex places() const { return static_cast<ChunkIndex>(chunks_.size()) * kChunksPerSection; }
  const Chunk& operator[](ChunkIndex i) const { return chunks_[i / kChunksPerSection][i % kChunksPerSection]; }
  // Those that were in doubt there already.
  const std::vector<RestingSlot>& resting() const { return resting_; }
  // The slots [shard] of a chunk; none if there is no such run, or no such space or group.
  std::span<const SlotRef> SlotsOf(const Chunk& chunk) const;
  // And what they measure there, [shard].
  std::span<const Bytes> SlotBytesOf(const Chunk& chunk) const;

 private:
  bool TakeSpace(std::span<const std::byte> section);

  std::vector<Space> spaces_;
  std::vector<const Chunk*> chunks_;
  std::vector<RestingSlot> resting_;
  std::array<std::vector<const SlotRef*>, Spaces::kRanksMax + 1> runs_;  // [shards]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_LEFT_INDEX_H_
