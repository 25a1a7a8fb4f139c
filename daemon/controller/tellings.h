#ifndef KVIST_DAEMON_CONTROLLER_TELLINGS_H_
#define KVIST_DAEMON_CONTROLLER_TELLINGS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "daemon/controller/holder_table.h"
#include "daemon/controller/readers.h"
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

  explicit Tellings(Readers* readers);

  // Of a node, kFilling. Nothing: all are in use, until more has been swept.
  std::optional<TellingId> Take(NodeId node);
  // To kLive or kStale; `instead` is void from the same moment on.
  void Show(TellingId telling, State state, std::optional<TellingId> instead = std::nullopt);
  void Void(TellingId telling);

  // Who reads takes the time before the first holder, and asks what it found was worth at that time after the last: of each node it sees one
  // telling, whole; void ones are swept when nobody reads who may see them.
  uint64_t Time() const;
  // seen[i] tells of tellings[i], or nothing: it wasn't shown at that time.
  void See(uint64_t time, const std::vector<TellingId>& tellings, std::vector<std::optional<Seen>>* seen) const;

  // One thread at a time: what is to be swept, and that one more shard, of so many, was swept of it, one after the other round and round.
  // Those that were swept for a whole round are free.
  TellingSet ToSweep();
  void Swept(uint32_t of);
  bool AnyVoid() const;

 private:
  struct Telling {
    State state = State::kFree;
    NodeId node;
    bool stale = false;
    uint64_t shown = 0;   // time; 0: never
    uint64_t voided = 0;  // time
  };

  struct VoidOne {
    TellingId telling;
    uint64_t mark;                            // of Readers
    std::optional<uint64_t> swept_from = {};  // of swept_
  };
  void MakeVoid(TellingId telling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Readers& readers_;
  mutable SharedMutex mutex_;
  std::vector<Telling> tellings_ ABSL_GUARDED_BY(mutex_);
  std::vector<TellingId> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<VoidOne> void_ ABSL_GUARDED_BY(mutex_);  // in the order in which they became so
  uint64_t time_ ABSL_GUARDED_BY(mutex_) = 0;         // counts what was shown and what became void
  uint64_t swept_ = 0;                                // shards, of the thread that sweeps
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_TELLINGS_H_
