#ifndef KVIST_DAEMON_CORE_UNTOLD_PINS_H_
#define KVIST_DAEMON_CORE_UNTOLD_PINS_H_

#include <cstddef>
#include <set>
#include <utility>

#include "daemon/core/events.h"
#include "storage/base/ids.h"

namespace kvist::core {

// Pins that ended before the disk had told of all that an earlier daemon has noted: told of later they don't come back. (What clears of prompts
// end is known from UntoldClears.) Threads: one.
class UntoldPins {
 public:
  // Who ends more than kEndedMax that fast may see some of them again.
  void Ended(SpaceId space, const PinName& name) {
    if (ended_.size() < kEndedMax) ended_.emplace(space, name);
  }
  // All of a space; all of all spaces, also of those that weren't known yet.
  void Cleared(SpaceId space) { cleared_.insert(space); }
  void ClearedAll() { all_ = true; }

  bool IsOver(SpaceId space, const PinName& name) const {
    return all_ || cleared_.contains(space) || ended_.contains({space, name});
  }
  void AllTold() {
    ended_.clear();
    cleared_.clear();
    all_ = false;
  }

 private:
  static constexpr size_t kEndedMax = 65536;

  std::set<std::pair<SpaceId, PinName>> ended_;
  std::set<SpaceId> cleared_;
  bool all_ = false;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_UNTOLD_PINS_H_
