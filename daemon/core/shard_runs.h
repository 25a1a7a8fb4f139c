#ifndef KVIST_DAEMON_CORE_SHARD_RUNS_H_
#define KVIST_DAEMON_CORE_SHARD_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/core/spaces.h"

namespace kvist::core {

// Runs of T, one T for each shard of a chunk that has several; runs of one length lie in one arena. A run's number says nothing of its
// length: the caller knows how many shards its chunk has.
// Threads: one.
template <class T>
class ShardRuns {
 public:
  uint32_t New(uint32_t shards) {
    Runs& runs = runs_[shards];
    if (!runs.free.empty()) {
      const uint32_t run = runs.free.back();
      runs.free.pop_back();
      return run;
    }
    if (runs.next % kRunsPerSegment == 0) runs.segments.push_back(std::make_unique<T[]>(size_t{kRunsPerSegment} * shards));
    return runs.next++;
  }
  void Free(uint32_t shards, uint32_t run) { runs_[shards].free.push_back(run); }
  T* At(uint32_t shards, uint32_t run) {
    return &runs_[shards].segments[run / kRunsPerSegment][size_t{run % kRunsPerSegment} * shards];
  }

 private:
  struct Runs {
    std::vector<std::unique_ptr<T[]>> segments;  // kRunsPerSegment runs each
    std::vector<uint32_t> free;
    uint32_t next = 0;
  };
  static constexpr uint32_t kRunsPerSegment = 4096;

  Runs runs_[Spaces::kRanksMax + 1];  // [shards]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_SHARD_RUNS_H_
