#ifndef KVIST_DAEMON_CORE_VACATING_H_
#define KVIST_DAEMON_CORE_VACATING_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "daemon/core/tenants.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::core {

// Empties slabs for slots of another size: what lies in one is copied to free places of its own size in other slabs. Were the least valuable
// chunks evicted instead until a slab happens to be empty, most of the pool would go first, for they lie all over it.
//
//   Comes    a slab is closed: nobody is given a slot of it
//   Step     some of its slots are to be copied (the caller has that done), until all were looked at
//   Copied   each chunk that still is where it was has its new slot from now on, and the old one is over
//   ...      and is read only by loads that began before: once they have ended (LoadEnded) the slab is empty
//   Claim    by the class that it was emptied for: it is free. Others would have it first, who evict their own today; after kPatience they may
//
// What can't be moved now stays (`movable`), and the slab isn't empty then. Another is tried, as when there was no room for anything: slots that
// were being reserved when a slab was chosen may be given back, and with them their slab. After kTries in vain none for kPatience, so that
// whoever needs room evicts as if there were no moving. Chunks aren't held meanwhile: they may be used and evicted as ever, and only writes
// below wait (IsCopied). What is copied of one that goes is garbage that nobody takes, for a closed slab's slots are given to nobody.
// One at a time, so that what is copied for it is bounded: for each slab at most as much as was freed before it.
// Threads: one.
class Vacating {
 public:
  struct Move {
    uint32_t owner;  // in the allocator's words
    SlotRef from, to;
  };
  static constexpr uint32_t kMovesMax = 32;    // of a step: some 64 MiB at the most, a few milliseconds
  static constexpr uint32_t kPlacesMax = 256;  // that a step looks at
  static constexpr uint32_t kWorkMax = kPlacesMax + 2 * kMovesMax;
  static constexpr int kTries = 4;
  // Longer than any copy of kvistd's; a load that waits for its GPU may take any time.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  explicit Vacating(pool::SlotAllocator* slots) : slots_(*slots) {}

  // Whom slots are wanted for.
  struct For {
    pool::SlotClass size;
    TenantId tenant;
  };
  // They find no slot. Whether a slab will be empty soon: begins with one if that can be. For others, too, who had better wait than evict
  // in vain. False also when it takes too long.
  bool Comes(For whom, absl::Time now);
  // Opens a slab that was emptied for this class, if there is one; or those that nobody has claimed in time.
  bool Claim(pool::SlotClass size);
  bool Expire(absl::Time now);
  // So many slots were wanted, for kPatience; while others' are, nothing: false. And whether more slabs are to be emptied for that.
  bool Want(For whom, uint64_t slots, absl::Time now);
  void WantNoMore() { wanted_ = 0; }
  bool WantsMore(absl::Time now) const;
  For wanted_for() const { return wanted_for_; }
  // What is being emptied for a tenant, or was and isn't claimed.
  Bytes ComingFor(TenantId tenant) const;
  // Counts what changes that.
  uint64_t changes() const { return changes_; }
  // A slab is being emptied; and will soon be empty, or won't.
  bool busy() const { return phase_ != Phase::kRests; }
  bool Soon(absl::Time now) const { return busy() && now < until_; }
  // Whether Step has something to do.
  bool steps() const { return phase_ == Phase::kLooks || phase_ == Phase::kFrees; }
  // The next slots to be copied, all of one size, until Copied; none: call it again while steps(). `looked_at` gets the places looked at, or freed.
  std::span<const Move> Step(absl::FunctionRef<bool(uint32_t owner, SlotRef slot)> movable, absl::Time now,
                             uint32_t* looked_at);
  // Whether the chunk's bytes are being copied.
  bool IsCopied(uint32_t owner) const;
  // They are copied. `take`: gives the chunk its new slot if it still is in the old one, and nobody but loads is using that.
  void Copied(absl::FunctionRef<bool(const Move& move)> take);

  // A load of any slots begins; what it returns is said when it has ended.
  uint32_t LoadBegan() { return ++loads_[era_ % 2], era_; }
  void LoadEnded(uint32_t era);

  // Live slots of no chunk: new ones that are being filled, old ones that are still read.
  size_t slots_apart() const { return moves_.size() + old_.size(); }
  // The moves that the last Copied has made.
  std::span<const Move> made() const { return made_; }
  uint64_t slots_moved() const { return slots_moved_; }  // since the start
  uint64_t slabs_emptied() const { return slabs_emptied_; }

 private:
  enum class Phase : uint8_t { kRests, kLooks, kCopies, kWaits, kFrees };
  void AllLookedAt();
  bool unread() const;
  uint32_t Free(absl::Time now);

  struct Emptied {
    uint32_t slab;  // closed
    For whom;
    absl::Time until;
  };

  pool::SlotAllocator& slots_;
  Phase phase_ = Phase::kRests;
  uint32_t slab_ = 0;
  For for_;
  absl::Time until_;  // it shall be empty
  uint32_t next_place_ = 0;
  bool stuck_ = false;  // something in it couldn't be moved
  bool moved_ = false;  // something was: what is left waits for more room
  int tries_ = 0;       // in vain
  std::optional<uint32_t> last_tried_;
  absl::Time rests_until_ = absl::InfinitePast();
  std::vector<Emptied> emptied_;
  uint64_t changes_ = 1;
  For wanted_for_;
  uint64_t wanted_ = 0;  // slots
  absl::Time wanted_until_ = absl::InfinitePast();
  std::vector<Move> moves_;
  std::vector<Move> made_;
  std::vector<SlotRef> old_;
  uint32_t era_ = 0;                    // ends when all of a slab was looked at
  std::array<uint64_t, 2> loads_ = {};  // [era % 2] under way: only of this era and the one before
  uint64_t slots_moved_ = 0;
  uint64_t slabs_emptied_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_VACATING_H_
