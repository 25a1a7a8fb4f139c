#ifndef KVIST_DAEMON_CORE_PINS_H_
#define KVIST_DAEMON_CORE_PINS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
  // Names it for operators: counts up from 1, never reused while the daemon lives. Add gives one to a pin that has none.
  uint64_t number = 0;
  uint32_t chunks = 0;  // the position
  Bytes bytes{};        // what it counts in the tenant's budget: all its chunks, shared or not
  uint64_t count = 0;   // how often it was pinned and not unpinned
  absl::Time since;
  absl::Time until = absl::InfiniteFuture();  // it ends by itself then
  absl::InlinedVector<ChunkIndex, 1> kept;
};

// All pins, by space, and by number.
//
// Lifecycle of a pin: Add -> ends once: taken out by its name, or with all of its space; in that case its number is Forgotten later.
// Threads: one.
class Pins {
 public:
  static constexpr size_t kPinsPerSpace = 65536;

  using OfSpace = std::map<PinName, Pin>;  // ordered, so that a simulated run replays exactly

  using Named = OfSpace::value_type;  // a pin and its name

  Pin* Find(SpaceId space, const PinName& name);
  Named* FindNamed(SpaceId space, const PinName& name);
  // Room for one more in the space?
  bool Full(SpaceId space) const;
  void Add(SpaceId space, TenantId tenant, PinName name, Pin pin);
  Pin Take(SpaceId space, TenantId tenant, const PinName& name);
  // All of a space, at a stroke; they count no longer. The caller ends them in slices, and has each one forgotten before.
  OfSpace TakeAll(SpaceId space, TenantId tenant);
  void Forget(const Pin& pin);

  struct Page {
    std::vector<std::pair<SpaceId, const Named*>> pins;  // borrowed until anything changes here
    uint64_t next = 0;                                   // look for the rest after this number; 0: there is none
  };
  // Pins whose numbers are above `after`, the lowest first: those among the next `looks` numbers, some of which may have been taken.
  Page After(uint64_t after, size_t looks) const;

  // Pins that end by themselves.
  bool expires() const { return !expiring_.empty(); }  // any, some day
  bool Due(absl::Time now) const { return expires() && expiring_.begin()->first <= now; }
  struct Expired {
    SpaceId space;
    PinName name;
  };
  // One that is due, which the caller has to take out; nothing: it went with its space. Each is told of once.
  std::optional<Expired> NextDue();

  bool CountsExpiring() const;  // whether all that end by themselves are known as such; for tests

  Bytes used(TenantId tenant) const;
  size_t size() const { return size_; }
  size_t numbers() const { return by_number_.size(); }  // of pins, and of those taken with their space that aren't forgotten
  template <class F>
  void ForEach(F f) const {
    for (uint32_t s = 0; s < spaces_.size(); ++s) {
      for (const Named& named : spaces_[s].pins) f(SpaceId{s}, named);
    }
  }

 private:
  struct Space {
    OfSpace pins;
    Bytes bytes{};
    uint32_t taken = 0;  // how often all were
  };
  // Where a number's pin is. It is there as long as the space's `taken` is the same; its memory stays until its number is forgotten, for
  // nodes of a map don't move.
  struct Place {
    SpaceId space;
    uint32_t taken = 0;
    const Named* pin = nullptr;
  };
  Space& At(SpaceId space);

  std::vector<Space> spaces_;
  std::map<uint64_t, Place> by_number_;
  std::set<std::pair<absl::Time, uint64_t>> expiring_;  // numbers, by when they end by themselves
  uint64_t last_number_ = 0;
  std::vector<Bytes> used_;  // [tenant]
  size_t size_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PINS_H_
