#ifndef KVIST_DAEMON_CONTROLLER_DIRECTORY_SEARCH_H_
#define KVIST_DAEMON_CONTROLLER_DIRECTORY_SEARCH_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/controller/directory.h"

namespace kvist::controller {

// What one node has of a prompt.
struct Holding {
  NodeId node;
  bool stale = false;   // it was so; whether it still is, nobody has said
  uint32_t chunks = 0;  // from the first on: where an engine on this node can go on, in every group
  // Of the (chunk, group)s that it needs for that (storage/base/reuse_rule.h), how many are in exactly those tiers. [TierSet::bits]
  std::array<uint32_t, TierSet::kAll + 1> in_tiers{};

  uint32_t needed() const;
  uint32_t In(RestTier tier) const;          // in that tier, whatever else
  uint32_t QuickestIn(RestTier tier) const;  // in that tier and no quicker one
};

// Lookups in a directory: who holds how much of a prompt.
//
//   keys      0 1 2 3 4 5 6 7
//   full      # # # # # # .        all before the position
//   window 2  . . # # . # #        the last two before it         -> 4, of one node
//   state     . # . # . . #        the one before it
//
// Every node is told by one of its tellings, whole; changes that come meanwhile may be seen or not. A holding may be wrong by the odds of
// fingerprint.h, and is always a hint: the node itself is asked next.
//
// Cost:    per group and key a cache miss or two, asked for in advance, as far as any node goes on in the `full` groups before it; and a byte for
//          each node that has it. Keeps that memory between lookups.
// Threads: one; any number of them beside each other and beside all that the directory does.
class DirectorySearch {
 public:
  static constexpr uint32_t kKeysMax = 4096;

  explicit DirectorySearch(const Directory* directory);  // which must outlive it

  // The nodes that hold something usable, the one with most first. Valid until the next call.
  // Errors: NotFound         no node has introduced the space.
  //         InvalidArgument  more than kKeysMax keys.
  absl::StatusOr<std::span<const Holding>> Find(const SpaceDigest& space, std::span<const ChunkKey> keys);

 private:
  struct Holder {
    TellingId telling;
    TierSet tiers;
  };
  // Calls note(k, telling, tiers) for each holder of keys[k], k in [first, first + a block), and asks for the cache lines of the block
  // after; in order, from 0.
  template <class F>
  void ReadBlock(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys, uint32_t first, F note);
  // Notes who has the chunks of a `full` group, as far as anybody has all of them; that is then how far each row reaches at most.
  void ReadFull(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys);
  void ReadOther(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys);
  // The largest position up to the row's reach that suits all groups: see core/usable_position.h, which does it for one node.
  uint32_t Usable(const std::vector<ReuseRule>& rules, uint32_t row);
  uint32_t LastUsable(const ReuseRule& rule, uint32_t row, uint16_t group, uint32_t end);

  // What a telling holds of the keys, a byte for each in each group: TierSet::bits. The first group that is read makes the rows: who has
  // nothing there has nothing usable.
  uint8_t* BytesOf(uint32_t row, uint16_t group) { return &bytes_[(size_t{row} * groups_ + group) * stride_]; }
  bool HasRow(TellingId telling) const { return row_search_[telling] == search_; }
  void MakeRow(TellingId telling);

  const Directory& directory_;
  uint64_t search_ = 0;  // counts them
  uint32_t groups_ = 0;
  uint32_t stride_ = 0;     // keys
  bool first_read_ = true;  // no group has been read
  Readers::Reader reader_;
  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> row_of_;        // [telling], if row_search_ is this search
  std::vector<uint64_t> row_search_;    // [telling]
  std::vector<TellingId> owners_;       // [row]
  std::vector<uint32_t> reach_;         // [row] how many of the first keys it has in all `full` groups so far
  std::vector<uint32_t> group_reach_;   // [row] the same in the one that is being read
  std::vector<uint32_t> low_;           // [group] of Usable: all of [low, the position that was tried last) are there
  std::vector<uint64_t> fingerprints_;  // [key] in the group that is being read
  std::vector<Holder> holders_;         // of one chunk
  std::vector<std::optional<Tellings::Seen>> seen_;  // [row]
  std::vector<Holding> holdings_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_DIRECTORY_SEARCH_H_
