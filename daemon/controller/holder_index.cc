#include "daemon/controller/holder_index.h"

#include <utility>

namespace kvist::controller {

HolderIndex::HolderIndex() : shards_(new Shard[kShards]) {}

int HolderIndex::Set(uint64_t fingerprint, TellingId telling, TierSet tiers) {
  Shard& shard = ShardOf(fingerprint);
  const MutexLock writer(&shard.writer);
  while (true) {
    HolderTable::Change change;
    uint32_t homes = 0;
    {
      const WriterLock lock(&shard.readers);
      change = shard.table.Set(fingerprint, telling, tiers);
      if (change == HolderTable::Change::kFull) homes = shard.table.homes_when_full();
      if (change == HolderTable::Change::kRemoved && shard.table.sparse()) homes = HolderTable::HomesFor(shard.table.used());
    }
    if (homes > 0) Remake(&shard, homes, nullptr);
    switch (change) {
      case HolderTable::Change::kNone: return 0;
      case HolderTable::Change::kAdded: return 1;
      case HolderTable::Change::kRemoved: return -1;
      case HolderTable::Change::kFull: break;
    }
  }
}

void HolderIndex::Remake(Shard* shard, uint32_t homes, const TellingSet* dead) {
  HolderTable made(kShardBits);
  uint64_t before = 0;
  {
    const ReaderLock lock(&shard->readers);  // whoever looks something up goes on meanwhile
    made = shard->table.Remade(homes, dead);
    before = shard->table.memory_bytes();
  }
  // The sum comes first, so that it never misses what is there.
  table_bytes_.fetch_add(made.memory_bytes(), std::memory_order_relaxed);
  {
    const WriterLock lock(&shard->readers);
    std::swap(shard->table, made);
    shard->cells.store(static_cast<const char*>(shard->table.cells()), std::memory_order_relaxed);
    shard->homes.store(shard->table.homes(), std::memory_order_relaxed);
  }
  table_bytes_.fetch_sub(before, std::memory_order_relaxed);
}

void HolderIndex::Sweep(uint32_t which, const TellingSet& dead) {
  Shard& shard = shards_[which];
  const MutexLock writer(&shard.writer);
  HolderTable::Left left;
  uint32_t homes = 0;
  {
    const ReaderLock lock(&shard.readers);
    left = shard.table.WithoutDead(dead);
    homes = shard.table.homes();
  }
  if (!left.dropped) return;
  Remake(&shard, left.cells < homes / 4 ? HolderTable::HomesFor(left.cells) : homes, &dead);
}

}  // namespace kvist::controller
