#ifndef KVIST_TESTS_SIM_MEMORY_H_
#define KVIST_TESTS_SIM_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/pool/slot_allocator.h"
#include "tests/sim/verdict.h"

namespace kvist::sim {

using ShardId =
    uint32_t;  // one store of one shard; 0 is none. Never reused, so old bytes of a key are not taken for new ones.

inline constexpr uint32_t kSlotPagesMax = 4;  // that a shard has, in these worlds

// One rank's bytes of a chunk, as one store wrote them.
struct Shard {
  SpaceId space;
  GroupId group;
  ChunkKey key;
  Rank rank;
  std::optional<ChunkKey> parent;  // absent: the first of its chain
  uint64_t clears = 0;             // clears of the space before this store began
  SlotRef slot;
  uint32_t first_page = 0;
  uint32_t pages = 0;
  enum class State : uint8_t { kWriting, kComplete, kGarbage } state = State::kWriting;
  uint32_t readers = 0;  // copies that read it now
  uint32_t leases = 0;   // leases that promise it
};

// The pool's bytes, simulated: each 4 KiB page remembers whose bytes it holds. Pages and not slots, so that slots of different
// sizes that overlap are found, too.
//
// A store tears its pages from its start and makes them right one by one; one that fails leaves what it has written so far.
// The promises kept here: nothing writes what is being read, written or leased; a read sees complete bytes of its own shard only.
// Threads: one.
class Memory {
 public:
  Memory(const std::vector<Bytes>& regions, const pool::SlotAllocator* slots, Verdict* verdict);

  // A copy into `shard.slot` begins. The shard's pages and state are set here.
  ShardId BeginStore(Shard shard);
  void WritePage(ShardId id, uint32_t page);
  void EndStore(ShardId id, bool complete);

  // The core is gone, and another has the pool, whose slots are new: a shard that is whole there and live is one of them.
  void NewSlots();

  // A copy of the complete shard in `from` into `to` begins. It is a shard of its own, written page by page, until it is taken: then the shard
  // lies there, and what is read in the old place, by copies that began before, is the copy.
  struct SlotCopy {
    ShardId of, to;
  };
  SlotCopy BeginCopy(SlotRef from, SlotRef to);
  void CopyPage(const SlotCopy& copy, uint32_t page);
  void Take(const SlotCopy& copy);

  void BeginLoad(ShardId id);
  void CheckRead(ShardId id) const;
  void ReadPage(ShardId id, uint32_t page);
  void EndLoad(ShardId id) { --shards_[id].readers; }

  void Lease(ShardId id) { ++shards_[id].leases; }
  void Unlease(ShardId id) { --shards_[id].leases; }

  // Whether the shard's slot still is its own and every page holds its bytes.
  bool Intact(ShardId id) const;
  const Shard& operator[](ShardId id) const { return shards_[id]; }
  ShardId next() const { return static_cast<ShardId>(shards_.size()); }  // that the next store gets

 private:
  struct Page {
    ShardId owner = 0;    // the shard that was last given this page
    ShardId content = 0;  // whose bytes stand there; 0 is garbage
  };
  uint32_t FirstPageOf(SlotRef slot) const;

  const pool::SlotAllocator& slots_;
  Verdict& verdict_;
  std::vector<uint32_t> first_page_;  // [region]
  std::vector<Page> pages_;
  std::vector<Shard> shards_{1};
};

std::string Describe(ShardId id, const Shard& shard);

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_MEMORY_H_
