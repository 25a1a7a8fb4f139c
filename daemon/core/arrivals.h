#ifndef KVIST_DAEMON_CORE_ARRIVALS_H_
#define KVIST_DAEMON_CORE_ARRIVALS_H_

#include <cstdint>
#include <utility>

#include "absl/container/btree_map.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "storage/base/check.h"

namespace kvist::core {

// Which chunks have come to a tier since a clear of that tier was asked for, for they stay. Noted only while such a clear runs or waits; what
// was noted goes piece by piece afterwards (DropLeftover). Each operation is O(log n). Threads: one.
class Arrivals {
 public:
  // A clear takes what came before the number that this gives.
  uint64_t Watch() {
    ++watchers_;
    return next_;
  }
  void WatchNoLonger() {
    KVIST_CHECK(watchers_ > 0);
    --watchers_;
  }
  bool watched() const { return watchers_ > 0; }

  void Note(ChunkRef chunk, Tier tier) { came_[{chunk.index, tier}] = {chunk.generation, next_++}; }
  bool CameSince(ChunkRef chunk, Tier tier, uint64_t since) const {
    const auto came = came_.find({chunk.index, tier});
    return came != came_.end() && came->second.generation == chunk.generation && came->second.number >= since;
  }

  // Whether something was noted that nobody asks for any more; and one of it goes.
  bool has_leftovers() const { return watchers_ == 0 && !came_.empty(); }
  void DropLeftover() { came_.erase(came_.begin()); }

 private:
  struct Came {
    uint32_t generation = 0;  // of the place
    uint64_t number = 0;
  };
  uint32_t watchers_ = 0;
  uint64_t next_ = 1;
  absl::btree_map<std::pair<ChunkIndex, Tier>, Came> came_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_ARRIVALS_H_
