#ifndef KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_
#define KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "daemon/controller/holder_table.h"
#include "daemon/controller/readers.h"
#include "storage/base/mutex.h"

namespace kvist::controller {

// Who holds which chunk, for many readers and writers at once: HolderTables, each with a share of the fingerprints.
//
// Threads: any. Who changes a shard holds its lock, also while its table is made anew, some 100 us where it has 16,000 cells. Who reads takes no
//   lock, and waits for nobody: not for a writer that the system has stopped in the middle of a change (holder_table.h), nor for memory. It
//   reads between Begin and End of its Reader; a table that is replaced meanwhile stays until then.
class HolderIndex {
 public:
  static constexpr uint32_t kShardBits = 12;
  static constexpr uint32_t kShards = 1u << kShardBits;

  HolderIndex();
  ~HolderIndex();

  // See HolderTable::Set; makes room as it needs. +1: the telling hadn't the chunk, -1: it had, 0: as before.
  int Set(uint64_t fingerprint, TellingId telling, TierSet tiers);

  // See HolderTable::Visit. By a reader that has begun.
  template <class F>
  void Visit(uint64_t fingerprint, F see) const {
    TableOf(fingerprint).Visit(fingerprint, see);
  }
  // See HolderTable::Touch. By a reader that has begun.
  void Touch(uint64_t fingerprint) const { TableOf(fingerprint).Touch(fingerprint); }
  Readers* readers() const { return &readers_; }

  // Forgets, in one shard, all tellings in `lost`, which nobody may write for any more; gives memory back where little is left. The work of a
  // shard.
  void Sweep(uint32_t shard, const TellingSet& lost);
  // Gives back what has waited for readers.
  void Collect() { table_bytes_.fetch_sub(readers_.Collect(), std::memory_order_relaxed); }

  // Of tables and shards, as taken from the system, with what waits for readers.
  uint64_t memory_bytes() const { return table_bytes_.load(std::memory_order_relaxed) + kShards * sizeof(Shard); }

 private:
  struct alignas(64) Shard {
    std::atomic<uint64_t> table = 0;  // packed; written under the lock
    Mutex mutex;
    HolderTable::Filling filling ABSL_GUARDED_BY(mutex);
  };
  static_assert(sizeof(Shard) == 64);

  HolderTable TableOf(uint64_t fingerprint) const {
    // seq_cst for Readers; as cheap as any other.
    return HolderTable::Unpack(shards_[fingerprint >> (64 - kShardBits)].table.load(std::memory_order_seq_cst), kShardBits);
  }
  void Remake(Shard* shard, uint32_t size, const TellingSet& lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mutex);

  const std::unique_ptr<Shard[]> shards_;
  std::atomic<uint64_t> table_bytes_ = 0;
  mutable Readers readers_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_HOLDER_INDEX_H_
