#ifndef KVIST_DAEMON_CORE_PINS_H_
#define KVIST_DAEMON_CORE_PINS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "daemon/core/tenants.h"
#include "storage/base/units.h"

namespace kvist::core {

// Somebody's wish that a position stays. It keeps the same chunks as a lease on that position would (leases.h).
struct Pin {
  uint32_t chunks = 0;  // the position
  Bytes bytes{};        // what it counts in the tenant's budget: all its chunks, shared or not
  uint64_t count = 0;   // how often it was pinned and not unpinned
  absl::Time since;
  absl::InlinedVector<ChunkIndex, 1> kept;
};

// All pins, by space.
//
// Lifecycle of a pin: Add -> ends once: taken out by its name, or with all of its space.
// Threads: one.
class Pins {
 public:
  static constexpr size_t kPinsPerSpace = 65536;

  using OfSpace = std::map<PinName, Pin>;  // ordered, so that a simulated run replays exactly

  Pin* Find(SpaceId space, const PinName& name);
  // Room for one more in the space?
  bool Full(SpaceId space) const;
  void Add(SpaceId space, TenantId tenant, PinName name, Pin pin);
  Pin Take(SpaceId space, TenantId tenant, const PinName& name);
  // All of a space, at a stroke; they count no longer. The caller ends them in slices.
  OfSpace TakeAll(SpaceId space, TenantId tenant);

  Bytes used(TenantId tenant) const;
  size_t size() const { return size_; }
  template <class F>
  void ForEach(F f) const {
    for (uint32_t s = 0; s < spaces_.size(); ++s) {
      for (const auto& [name, pin] : spaces_[s].pins) f(SpaceId{s}, name, pin);
    }
  }

 private:
  struct Space {
    OfSpace pins;
    Bytes bytes{};
  };
  Space& At(SpaceId space);

  std::vector<Space> spaces_;
  std::vector<Bytes> used_;  // [tenant]
  size_t size_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PINS_H_
