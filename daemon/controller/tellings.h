#ifndef KVIST_DAEMON_CONTROLLER_TELLINGS_H_
#define KVIST_DAEMON_CONTROLLER_TELLINGS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "daemon/controller/holder_table.h"
#include "daemon/controller/shared_mutex.h"
#include "storage/base/ids.h"

namespace kvist::controller {

// A node as this directory names it, never reused while it lives.
using NodeId = Id<struct NodeTag, uint32_t>;

// All tellings, and what they are worth: nobody sees one that is being filled, and one that is void is gone at once for everybody, though its
// chunks go in slices.
//
//   free -> kFilling -> kLive <-> kStale -> kVoid -> free, when the sweep has been everywhere
//              `---------------------------^
//
// Threads: any.
class Tellings {
 public:
  enum class State : uint8_t { kFree, kFilling, kLive, kStale, kVoid };
  struct Seen {
    NodeId node;
    bool stale = false;
  };

  Tellings();

  // Of a node, kFilling. Nothing: all are in use, until more has been swept.
  std::optional<TellingId> Take(NodeId node);
  // To kLive or kStale; `instead` is void from the same moment on.
  void Show(TellingId telling, State state, std::optional<TellingId> instead = std::nullopt);
  void Void(TellingId telling);

  // A reader takes the time before it reads the first holder, and asks what it found is worth when it has read the last: of each node it
  // then sees one telling, and none that was begun meanwhile in the place of an old one.
  uint64_t Time() const;
  // seen[i] is told about of tellings[i], or nothing: being filled, void, or younger than `time`. All at one moment.
  void See(uint64_t time, const std::vector<TellingId>& tellings, std::vector<std::optional<Seen>>* seen) const;

  TellingSet Dead() const;  // the void ones
  bool AnyDead() const;
  // One more shard, of so many, was swept of Dead(), one after the other round and round: those that were void for a whole round are free.
  void Swept(uint32_t of);

 private:
  struct Telling {
    State state = State::kFree;
    NodeId node;
    uint64_t taken = 0;  // time
    uint64_t swept = 0;  // swept_ when it became void
  };

  mutable SharedMutex mutex_;
  std::vector<Telling> tellings_ ABSL_GUARDED_BY(mutex_);
  std::vector<TellingId> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<TellingId> void_ ABSL_GUARDED_BY(mutex_);
  uint64_t time_ ABSL_GUARDED_BY(mutex_) = 0;  // how many were taken
  std::atomic<uint64_t> swept_ = 0;            // shards; one thread at a time sweeps
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_TELLINGS_H_
