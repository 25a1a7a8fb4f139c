#ifndef KVIST_DAEMON_CORE_USABLE_POSITION_H_
#define KVIST_DAEMON_CORE_USABLE_POSITION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"

namespace kvist::core {

// Finds how far a prompt can be resumed in every cache group of its space at once: the answer to a lookup.
//
//   keys      0 1 2 3 4 5 6 7
//   full      # # # # # # .        all before the position
//   window 2  . . # # . # #        the last two before it         -> 4: there all three have what they need
//   state     . # . # . . #        the one before it
//
// Cost: what a prefix search costs per full group, then at most one index probe per key and other group, from the end backwards;
//   usually only those that are needed.
// Threads: one. Keeps its memory between searches.
class UsablePosition {
 public:
  explicit UsablePosition(const ChunkTable* chunks) : chunks_(*chunks) {}

  // The largest such position, at most keys.size(); 0 when there is none. `epoch` is the space's: older chunks have been cleared.
  uint32_t Find(SpaceId space, uint32_t epoch, std::span<const GroupSpec> groups, std::span<const ChunkKey> keys);
  // The places of the chunks [FirstNeeded(position), position) of a group, for the position that Find gave.
  std::span<const ChunkIndex> needed(GroupId group) const;

 private:
  // The largest position up to `end` whose needed chunks of the group are all there.
  uint32_t LastUsable(GroupId group, uint32_t end);
  bool Has(GroupId group, uint32_t position);

  const ChunkTable& chunks_;
  SpaceId space_;
  uint32_t epoch_ = 0;
  std::span<const GroupSpec> groups_;
  std::span<const ChunkKey> keys_;
  uint32_t position_ = 0;
  std::vector<std::vector<ChunkIndex>> places_;  // [group][position], or kNotAsked
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_USABLE_POSITION_H_
