#ifndef KVIST_DAEMON_CORE_ASK_H_
#define KVIST_DAEMON_CORE_ASK_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "storage/base/ids.h"

namespace kvist::core {

// A question to the store beyond the node, of a lookup or of a job's: which chunks of `keys` it has from `from` on. It is asked for a few at first.
struct Ask {
  LookupAsked lookup;  // but its keys
  std::vector<ChunkKey> keys;
  SpaceId space;
  uint32_t epoch = 0;  // the space's, when it was asked
  absl::Time began;
  uint32_t from = 0;                          // the position before it was asked
  uint32_t asked = 0;                         // keys from there on, so far
  bool vain = false;                          // what is found may be what was to be forgotten
  JobId job = {};                             // that asks, instead of a lookup
  std::vector<std::vector<bool>> there = {};  // [group][key - from]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_ASK_H_
