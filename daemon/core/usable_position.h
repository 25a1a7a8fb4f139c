#ifndef KVIST_DAEMON_CORE_USABLE_POSITION_H_
#define KVIST_DAEMON_CORE_USABLE_POSITION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/space_spec.h"

namespace kvist::core {

// Finds how far a prompt can be resumed in every cache group of its space at once: the answer to a lookup.
//
//   keys      0 1 2 3 4 5 6 7
//   full      # # # # # # .        all before the position
//   window 2  . . # # . # #        the last two before it         -> 4: there all three have what they need
//   state     . # . # . . #        the one before it
//
// Cost: what a prefix search costs per full group, then at most one index probe per key and other group, from the end backwards;
//   usually only those that are needed. In all at most about the `work` of its options, in ChunkTable::work(): keys beyond Reach
//   are not looked at, and a search that has cost too much finds nothing. A shorter position is as right as the longest.
// Threads: one. Keeps its memory between searches.
class UsablePosition {
 public:
  UsablePosition(const ChunkTable* chunks, uint32_t work) : chunks_(*chunks), work_(work) {}

  // How many of `keys` a search in such groups looks at: those whose position needs so few chunks that finding them, leasing them
  // and letting them go is about three quarters of `work`. All 4,096 of a request with event_work's default, but in spaces of many
  // full groups or of vast windows.
  static uint32_t Reach(std::span<const GroupSpec> groups, uint32_t keys, uint32_t work);

  // The largest such position, at most Reach; 0 when there is none. `epoch` is the space's: older chunks have been cleared.
  uint32_t Find(SpaceId space, uint32_t epoch, std::span<const GroupSpec> groups, std::span<const ChunkKey> keys);
  // The largest one up to `end`, which is at most the last that was found, in the same search; needed() tells of it from then on. Nothing, and
  // all is as it was, when that would cost more than an eighth of `work`.
  std::optional<uint32_t> Shorten(uint32_t end);
  // The places of the chunks [FirstNeeded(position), position) of a group, for the position that Find or Shorten gave.
  std::span<const ChunkIndex> needed(GroupId group) const;

 private:
  // The largest position up to `end` that suits all groups: each pulls it back to where it can go on, until none does; each step back is for
  // good.
  uint32_t PullBack(uint32_t end);
  // The largest position up to `end` whose needed chunks of the group are all there; 0 when that costs too much.
  uint32_t LastUsable(GroupId group, uint32_t end);

  const ChunkTable& chunks_;
  const uint32_t work_;
  uint64_t until_ = 0;  // ChunkTable::work() at which the search gives up
  SpaceId space_;
  uint32_t epoch_ = 0;
  std::span<const GroupSpec> groups_;
  std::span<const ChunkKey> keys_;
  uint16_t others_ = 0;  // groups that aren't chained
  uint32_t position_ = 0;
  std::vector<std::vector<ChunkIndex>> places_;  // [group][position]: of those that were asked for
  // [group] All of [low, the last position that was tried) are there. It only sinks, and what is below it hasn't been asked for.
  std::vector<uint32_t> low_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_USABLE_POSITION_H_
