#ifndef KVIST_DAEMON_CORE_FLUSHES_H_
#define KVIST_DAEMON_CORE_FLUSHES_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "storage/base/ids.h"

namespace kvist::core {

// A walk over the index that writes what isn't on disk yet: of a session's space, or of all.
struct Flush {
  std::optional<SessionId> session;
  RequestTag tag;
  std::optional<SpaceId> space;
  ChunkIndex next = 0, end = 0;  // places that it has looked at, of those that it will
  uint64_t writes = 0;           // it waits for those that were begun before this one (DiskWrites)
  uint64_t chunks = 0;           // on disk
  uint64_t failed = 0;

  bool looked() const { return next == end; }
  bool Counts(ChunkIndex chunk, SpaceId of) const { return chunk < next && (!space.has_value() || *space == of); }
};

// Flushes that haven't ended; the first one is walked. What becomes of a chunk counts for all that have passed its place.
// Threads: one.
class Flushes {
 public:
  void Add(const Flush& flush) { flushes_.push_back(flush); }
  bool HasOf(SessionId session) const {
    return std::any_of(flushes_.begin(), flushes_.end(), [&](const Flush& flush) { return flush.session == session; });
  }
  void DropOf(SessionId session) {
    std::erase_if(flushes_, [&](const Flush& flush) { return flush.session == session; });
  }
  bool empty() const { return flushes_.empty(); }
  Flush& first() { return flushes_.front(); }
  const Flush& first() const { return flushes_.front(); }
  void TakeFirst() { flushes_.pop_front(); }

  // A write of the chunk has ended, and whether it is on disk now.
  void WriteEnded(ChunkIndex chunk, SpaceId space, bool there) {
    for (Flush& flush : flushes_) {
      if (flush.Counts(chunk, space)) ++(there ? flush.chunks : flush.failed);
    }
  }
  // A chunk that was on disk (those that have passed it have counted it) isn't, or won't be for long.
  void Lost(ChunkIndex chunk, SpaceId space) {
    for (Flush& flush : flushes_) {
      if (!flush.Counts(chunk, space) || flush.chunks == 0) continue;
      --flush.chunks;
      ++flush.failed;
    }
  }

 private:
  std::deque<Flush> flushes_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_FLUSHES_H_
