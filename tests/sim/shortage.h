#ifndef KVIST_TESTS_SIM_SHORTAGE_H_
#define KVIST_TESTS_SIM_SHORTAGE_H_

#include <vector>

#include "storage/base/ids.h"
#include "storage/pool/slot_allocator.h"
#include "tests/sim/prng.h"

namespace kvist::sim {

// Lets the core's reservations fail though the pool has room: for one event it takes all that is free, but for a few places. To the core that
// is a pool that others have filled up to the last places, so it needs no allocator of the tests' own; evictions may still make room.
//
// Lifecycle: Begin -> the core handles one event -> End. Meanwhile live slots aren't what the core holds: no invariants are checked.
// Threads: one.
class Shortage {
 public:
  // Both outlive it. `slots` may be made anew between End and Begin.
  Shortage(pool::SlotAllocator* slots, Prng* prng) : slots_(*slots), prng_(*prng) {}

  void Begin();
  // Gives all back. Of the places that were left free: how many the core has reserved and given back in that event.
  uint32_t End();

 private:
  static constexpr uint32_t kLeftMax = 6;

  // Every free place, slabs that no class has going to a size by chance.
  std::vector<SlotRef> TakeAll();

  pool::SlotAllocator& slots_;
  Prng& prng_;
  std::vector<SlotRef> taken_;
  std::vector<SlotRef> left_;  // as they were when they were taken
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_SHORTAGE_H_
