#ifndef KVIST_DAEMON_CONTROLLER_FEED_H_
#define KVIST_DAEMON_CONTROLLER_FEED_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "daemon/controller/tier_set.h"
#include "storage/base/ids.h"
#include "storage/base/reuse_rule.h"
#include "storage/base/units.h"

// What a node tells a directory of its chunks: a snapshot, then changes. The wire carries these structs and nothing else.
//
//   SnapshotBegin  (SpaceIntroduced | SnapshotSlice | ChangeBatch)*  SnapshotEnd  (SpaceIntroduced | ChangeBatch)*
//
// A node has an *epoch*, drawn at random when it starts, and counts its changes 1, 2, 3 .. within it. State is told, never a difference: a
// chunk's tiers *now*. So what is told twice does no harm, and a snapshot may be read from a node that goes on changing, under one rule:
//
//   **What a message says was true when the message was made, messages arrive in the order in which they were made, and after
//   SnapshotBegin{sequence} come all changes above `sequence`, in order, those that a slice has already seen, too.**
//
// A change that came before a slice was read is thus told again by the slice or, later, by itself: until all changes that were made before
// the last slice was read have been told, a chunk may look as it did a moment ago. SnapshotEnd comes after those.
namespace kvist::controller {

// A space in which the node has chunks; told before the first message that names it, and again after each SnapshotBegin.
struct SpaceIntroduced {
  uint64_t epoch = 0;
  SpaceId id;  // the node's own number, of this epoch
  SpaceDigest digest;
  std::string tenant = {};
  std::string model = {};
  Tokens chunk_tokens = {};
  std::vector<ReuseRule> groups = {};  // [group]
};

// Where one chunk of a node is now.
struct ChunkState {
  SpaceId space;  // as introduced
  GroupId group;
  ChunkKey key;
  TierSet tiers;  // none: gone

  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

// All that was told before is void once SnapshotEnd has come; what follows holds at least the changes up to `sequence`.
struct SnapshotBegin {
  uint64_t epoch = 0;
  uint64_t sequence = 0;
};

struct SnapshotSlice {
  uint64_t epoch = 0;
  uint32_t index = 0;  // 0, 1, 2 .. of this snapshot
  std::vector<ChunkState> chunks = {};
};

struct SnapshotEnd {
  uint64_t epoch = 0;
  uint32_t slices = 0;  // how many there were
  uint64_t untold = 0;  // changes that the node had had when this was made, and that come after it
};

// The changes (after, up_to], each chunk once with its last state. Empty with after == up_to: the node lives, and nothing has changed.
struct ChangeBatch {
  uint64_t epoch = 0;
  uint64_t after = 0;
  uint64_t up_to = 0;
  std::vector<ChunkState> chunks = {};
  uint64_t untold = 0;  // as of SnapshotEnd: 0 says that whoever hears it knew all at that moment
};

using FeedMessage = std::variant<SpaceIntroduced, SnapshotBegin, SnapshotSlice, SnapshotEnd, ChangeBatch>;

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FEED_H_
