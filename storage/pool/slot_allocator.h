#ifndef KVIST_STORAGE_POOL_SLOT_ALLOCATOR_H_
#define KVIST_STORAGE_POOL_SLOT_ALLOCATOR_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::pool {

// A class of slots of exactly one size. Spaces with the same slot size share it.
using SlotClass = Id<struct SlotClassTag, uint16_t>;

// Bookkeeping of the pool: which extents of the pinned regions hold a slot, and of which generation. It knows offsets, not
// memory: PinnedRegion has the bytes, so tests and the simulator run it over regions that don't exist.
//
//   region 0 (NUMA node 0)           region 1 (node 1)
//   | slab 0 | slab 1 | slab 2 | ..  | slab k | ...           a slab is slab_bytes long and never crosses a region
//     slots of class 3 | free          class 1                a slab serves one class at a time; when its last slot is freed
//                                                             it goes back, and any class may take it
//
// A SlotRef's index is `slab << place_bits | place in slab`, with as many place bits as a slab has slots of slot_bytes_min. A
// place's generation is even while it is free and odd while it is live, and outlives the slab's change of class.
//
// Lifecycle of a slot: Allocate -> live, a SlotRef with a new generation -> Free. Generations of a place only grow, so a stale
//   SlotRef is recognised for ever (until 2^31 reuses of one place).
// Choice of slab: near region before others; in a region a slab of the class that is in use before a free one, fuller ones first
//   (roughly: those more than half full), so that the others empty out and can move to another class.
// Closed slabs: a caller who wants a slab for another class closes one that is Vacatable, copies what is live in it to slots that
//   AllocateBeside gives in its class's other slabs, frees the old ones, and opens it, free by then. Until then its free places are nobody's.
// Threads: one (the core's). Movable, not copyable.
// Cost:    O(1) per call (and per region); 8 bytes per place of a slab that was ever used and 40 per slab. The first use of a
//   slab, or its first use for smaller slots, also sets up its places: at most 128 KiB for 64 MiB of 4 KiB slots.
class SlotAllocator {
 public:
  struct Options {
    std::vector<Bytes> regions;     // length of each pinned region; its tail below a slab is not used
    Bytes slab_bytes = MiB(64);     // the unit that moves between classes; must hold at least one slot of each class
    Bytes slot_bytes_min = KiB(4);  // no class is smaller; the pool is at most 2^32 of these (16 TiB by default) in size
  };
  static absl::StatusOr<SlotAllocator> Create(Options options);  // InvalidArgument names the option

  // The class for slots of `slot_bytes` (a multiple of 4 KiB, made on first use).
  // Errors: InvalidArgument  not a multiple, below slot_bytes_min, or larger than a slab (raise pool.slab_bytes).
  //         ResourceExhausted  65,535 classes.
  absl::StatusOr<SlotClass> ClassFor(Bytes slot_bytes);

  // A free slot of `slot_class`, preferring region `near`; nothing when neither the class nor the pool has a free place.
  std::optional<SlotRef> Allocate(SlotClass slot_class, uint32_t near = 0);
  // Takes the very place that a slot of that index had, of this class, in an allocator of the same Options: nothing when that can't be
  // (no such place, or its slab has another class). To be called with rising indexes, before anything is allocated or freed.
  // Cost: the free slabs before it, for the first place of a slab.
  std::optional<SlotRef> Retake(SlotClass slot_class, uint32_t index);
  // Gives a live slot back. Freeing a stale or free one is a bug and stops the process.
  void Free(SlotRef slot);
  bool IsLive(SlotRef slot) const;
  // Asks the processor for what Free(slot) will touch. `slot` may be any.
  void Prefetch(SlotRef slot) const;

  struct Place {
    uint32_t region;
    ByteOffset offset;  // of the slot within the region
    Bytes length;       // the class's slot_bytes
  };
  // Where a slot lies that is live, or in a closed slab.
  Place PlaceOf(SlotRef slot) const;

  uint64_t SlotsPerSlab(SlotClass slot_class) const { return classes_[slot_class.value].slots_per_slab; }

  // A word of the caller's for a live slot: nobody's until it is said.
  static constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();
  void SetOwner(SlotRef slot, uint32_t owner);
  uint32_t OwnerOf(SlotRef slot) const;

  // A slab whose live slots fit into free places of its class in other slabs, roughly the emptiest of some class, but not this one; nothing when
  // there is none, and when no class has a slab's worth of free places.
  std::optional<uint32_t> Vacatable(std::optional<uint32_t> but = std::nullopt);
  // No slot of it is given away until it is opened. `as`: one with live slots is used before others of its class, or after them.
  enum class Opened : uint8_t { kFirst, kLast };
  void Close(uint32_t slab);
  void Open(uint32_t slab, Opened as);
  SlotClass ClassOf(uint32_t slab) const { return SlotClass{slabs_[slab].slot_class}; }
  bool IsEmpty(uint32_t slab) const { return slabs_[slab].live == 0; }
  uint32_t places(uint32_t slab) const { return slabs_[slab].fresh; }  // above that none is live
  std::optional<SlotRef> LiveAt(uint32_t slab, uint32_t place) const;
  // A free place of the closed slab's class, in a slab that is in use already; in its region while there is one.
  std::optional<SlotRef> AllocateBeside(uint32_t slab);

  Bytes capacity() const { return options_.slab_bytes * slabs_.size(); }
  Bytes slab_bytes() const { return options_.slab_bytes; }
  uint64_t live_slots() const { return live_slots_; }
  Bytes live_bytes() const { return live_bytes_; }     // sum of slot_bytes of live slots
  uint64_t free_slabs() const { return free_slabs_; }  // slabs without a live slot
  // What slots can still be had of: free slabs, and free places of others, also of closed ones. The ends of slabs that no slot fits into aren't.
  Bytes free_bytes() const { return capacity() - live_bytes_ - tail_bytes_; }
  // Walks everything and stops the process when counts, lists and generations disagree; for tests.
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();  // no slab, no place
  static constexpr uint16_t kNoClass = std::numeric_limits<uint16_t>::max();

  struct PlaceState {
    uint32_t generation;  // odd: live
    union {
      uint32_t next_free;  // while in its slab's list of freed places
      uint32_t owner;      // while live
    };
  };
  // In exactly one of: its region's free list (no class), its class's list of slabs with a free place, or, full or closed, in none.
  struct Slab {
    std::unique_ptr<PlaceState[]> places;  // kept for ever; grows when a class of smaller slots takes the slab
    uint32_t places_size = 0;
    uint32_t prev = kNone;  // neighbours in its list; the free list has only `next`
    uint32_t next = kNone;
    uint32_t live = 0;
    uint32_t fresh = 0;      // places at and above this have not been used since the class took the slab
    uint32_t freed = kNone;  // list of free places below `fresh`
    uint16_t region = 0;
    uint16_t slot_class = kNoClass;
    bool closed = false;
  };
  struct Region {
    uint32_t first_slab;
    uint32_t free_slab;  // list of slabs that no class has
  };
  struct SlabList {
    uint32_t front = kNone;  // the fullest, roughly
    uint32_t back = kNone;   // the emptiest
  };
  struct Class {
    Bytes slot_bytes;
    uint32_t slots_per_slab;
    Bytes tail_bytes;               // of a slab: no slot fits there
    std::vector<SlabList> partial;  // per region: slabs of this class with a free place
    uint64_t free_places = 0;       // in those slabs
    bool loose = false;             // it is in loose_
  };

  SlotAllocator(Options options, uint32_t place_bits);

  uint32_t SlabOf(SlotRef slot) const { return static_cast<uint32_t>(uint64_t{slot.index} >> place_bits_); }
  uint32_t PlaceInSlab(SlotRef slot) const { return static_cast<uint32_t>(slot.index & ((uint64_t{1} << place_bits_) - 1)); }
  void TakeFreeSlab(uint32_t region, SlotClass slot_class);
  void GiveTo(SlotClass slot_class, uint32_t slab_number);
  SlotRef TakePlace(uint32_t slab_number, uint32_t place);
  SlotRef TakePlace(uint32_t slab_number);
  void GiveBack(uint32_t slab_number);
  void CountFree(uint16_t slot_class, uint64_t places);
  void PushFront(SlabList& list, uint32_t slab_number);
  void PushBack(SlabList& list, uint32_t slab_number);
  void Unlink(SlabList& list, uint32_t slab_number);

  Options options_;
  uint32_t place_bits_;
  std::vector<Region> regions_;
  std::vector<Slab> slabs_;  // of all regions, in order
  std::vector<Class> classes_;
  absl::flat_hash_map<uint64_t, SlotClass> class_of_size_;
  uint64_t free_slabs_ = 0;
  uint64_t live_slots_ = 0;
  Bytes live_bytes_{};
  Bytes tail_bytes_{};           // of slabs that a class has
  std::vector<uint16_t> loose_;  // classes that had a slab's worth of free places
};

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_SLOT_ALLOCATOR_H_
