#ifndef KVIST_STORAGE_BASE_IDS_H_
#define KVIST_STORAGE_BASE_IDS_H_

#include <array>
#include <cstdint>
#include <cstring>

#include "storage/base/strong.h"

// The nouns of kvist that are numbers. Each is a type of its own, so that a rank is never passed for a group.
namespace kvist {

// One connected process of an instance, and one engine: never reused while the daemon lives.
using SessionId = Id<struct SessionTag, uint64_t>;
using InstanceId = Id<struct InstanceTag, uint64_t>;
using SpaceId = Id<struct SpaceTag, uint32_t>;     // a space that this daemon has met; dense, starting at 0
using GroupId = Id<struct GroupTag, uint16_t>;     // a cache group within a space
using Rank = Id<struct RankTag, uint16_t>;         // a shard of a chunk = a worker rank (TP x PP)
using LayerIndex = Id<struct LayerTag, uint32_t>;  // a layer within its group
using PageId = Id<struct PageTag, uint32_t>;       // a block of the engine's paged KV memory
inline constexpr PageId kNoPage{UINT32_MAX};       // in a block table: a page that is not there, or not to be written

// What a group's chunks need to be usable; see reuse_rule.h.
enum class GroupKind : uint8_t { kFull, kWindow, kState };

// A handle to an entry of a table whose places are reused: `index` says where, `generation` that it is still the same entry.
// Stale handles are refused, never resolved to a newer owner. Generation 0 is no handle.
template <class Tag>
struct Handle {
  uint32_t index = 0;
  uint32_t generation = 0;

  constexpr bool operator==(const Handle&) const = default;
  constexpr explicit operator bool() const { return generation != 0; }
  constexpr uint64_t Pack() const { return uint64_t{generation} << 32 | index; }
  static constexpr Handle Unpack(uint64_t v) { return {static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)}; }
};

using SlotRef = Handle<struct SlotTag>;             // a pinned-DRAM extent that holds one shard
using LeaseId = Handle<struct LeaseTag>;            // an instance's revocable right that chunks stay
using OpId = Handle<struct OpTag>;                  // one copy in flight
using AllocationId = Handle<struct AllocationTag>;  // slots without keys, private to an instance

// Where a shard lies on disk; unit 0 is nowhere, for a segment's header is there (storage/ssd/format.h).
struct DiskPlace {
  uint32_t segment = 0;
  uint32_t unit = 0;

  constexpr bool operator==(const DiskPlace&) const = default;
  constexpr explicit operator bool() const { return unit != 0; }
};

// 256 bits that name something: a chunk by its whole prefix, or a space by everything that must match.
template <class Tag>
struct Digest {
  std::array<uint8_t, 32> bytes{};

  constexpr auto operator<=>(const Digest&) const = default;
  // The i-th 64-bit word, i in [0, 4); SHA-256 bits are uniform, so any word spreads.
  uint64_t word(int i) const {
    uint64_t w;
    std::memcpy(&w, bytes.data() + 8 * i, 8);
    return w;
  }
};

using ChunkKey = Digest<struct ChunkKeyTag>;
using SpaceDigest = Digest<struct SpaceDigestTag>;

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_IDS_H_
