#ifndef KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_
#define KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "daemon/controller/holder_table.h"
#include "daemon/controller/shared_mutex.h"
#include "storage/base/mutex.h"

namespace kvist::controller {

// Who holds which chunk, for many readers and writers at once: HolderTables, each with locks of its own and a share of the fingerprints.
//
// Threads: any. Two locks a shard. `writer` is held by who changes it, also while a larger table is made, which takes some 100 us where
//   a shard has 16,000 cells. `readers` is held while a chunk is read, or shared; and alone only while cells move (some 100 ns) or the larger
//   table is put in place. So a lookup waits for one change of one chunk at most, in a shard in 4,096, and never for memory; nothing is allocated
//   or given back under a lock that it takes.
class HolderIndex {
 public:
  static constexpr uint32_t kShardBits = 12;
  static constexpr uint32_t kShards = 1u << kShardBits;

  HolderIndex();

  // See HolderTable::Set; makes room as it needs. +1: the telling hadn't the chunk, -1: it had, 0: as before.
  int Set(uint64_t fingerprint, TellingId telling, TierSet tiers);

  // See HolderTable::Visit; `see` runs under a lock: no more than noting down.
  template <class F>
  void Visit(uint64_t fingerprint, F see) const {
    const Shard& shard = ShardOf(fingerprint);
    const ReaderLock lock(&shard.readers);
    shard.table.Visit(fingerprint, see);
  }

  // Asks the processor for what Set and Visit will read.
  void Prefetch(uint64_t fingerprint) const {
    const Shard& shard = ShardOf(fingerprint);
    // Both may be out of date, and of different times: then the wrong line is asked for.
    const char* cells = shard.cells.load(std::memory_order_relaxed);
    const uint32_t homes = shard.homes.load(std::memory_order_relaxed);
    const char* home = cells + uint64_t{HolderTable::Home(fingerprint, kShardBits, homes)} * HolderTable::kCellBytes;
    __builtin_prefetch(home);
    __builtin_prefetch(home + 64);
  }

  // Forgets, in one shard, all tellings in `dead`, which nobody may write for any more; gives memory back where little is left. The work of a
  // shard.
  void Sweep(uint32_t shard, const TellingSet& dead);

  // Of tables and shards, as taken from the system.
  uint64_t memory_bytes() const { return table_bytes_.load(std::memory_order_relaxed) + kShards * sizeof(Shard); }

 private:
  struct alignas(64) Shard {
    Mutex writer;  // before `readers`
    mutable SharedMutex readers;
    HolderTable table ABSL_GUARDED_BY(readers){kShardBits};
    std::atomic<const char*> cells = nullptr;  // the table's, for Prefetch
    std::atomic<uint32_t> homes = 0;
  };

  Shard& ShardOf(uint64_t fingerprint) { return shards_[fingerprint >> (64 - kShardBits)]; }
  const Shard& ShardOf(uint64_t fingerprint) const { return shards_[fingerprint >> (64 - kShardBits)]; }
  // The shard's table with another number of homes, without `dead`.
  void Remake(Shard* shard, uint32_t homes, const TellingSet* dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->writer);

  const std::unique_ptr<Shard[]> shards_;
  std::atomic<uint64_t> table_bytes_ = 0;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_
