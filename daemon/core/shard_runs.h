#ifndef KVIST_DAEMON_CORE_SHARD_RUNS_H_
#define KVIST_DAEMON_CORE_SHARD_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/core/index_image.h"
#include "daemon/core/spaces.h"
#include "storage/pool/sections.h"

namespace kvist::core {

// Runs of T, one T for each shard of a chunk that has several; runs of one length lie together. A run's number says nothing of its
// length: the caller knows how many shards its chunk has.
// Threads: one.
template <class T>
class ShardRuns {
 public:
  ShardRuns(pool::Sections* sections, ImageSection kind) : sections_(*sections), kind_(kind) {}

  uint32_t New(uint32_t shards) {
    Runs& runs = runs_[shards];
    if (!runs.free.empty()) {
      const uint32_t run = runs.free.back();
      runs.free.pop_back();
      return run;
    }
    if (runs.next % kRunsPerSection == 0) {
      const Bytes bytes{sizeof(T) * kRunsPerSection * shards};
      runs.sections.push_back(reinterpret_cast<T*>(sections_.New(static_cast<uint32_t>(kind_), shards, bytes)));
    }
    return runs.next++;
  }
  void Free(uint32_t shards, uint32_t run) { runs_[shards].free.push_back(run); }
  T* At(uint32_t shards, uint32_t run) {
    return &runs_[shards].sections[run / kRunsPerSection][size_t{run % kRunsPerSection} * shards];
  }

 private:
  struct Runs {
    std::vector<T*> sections;
    std::vector<uint32_t> free;
    uint32_t next = 0;
  };

  pool::Sections& sections_;
  const ImageSection kind_;
  Runs runs_[Spaces::kRanksMax + 1];  // [shards]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_SHARD_RUNS_H_
