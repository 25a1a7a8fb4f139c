#include "daemon/controller/holder_index.h"

#include <algorithm>

namespace kvist::controller {

namespace {

// Where much is gone the same size may do, once. Else it has to be larger, also where few cells crowd the end of the table.
uint32_t SizeWhenFull(HolderTable table, const HolderTable::Filling& filling) {
  const uint32_t size = HolderTable::SizeFor(filling.used - filling.gone + 1);
  return table.none() || filling.gone > table.homes() / 8 ? size : std::max(size, table.size() + 1);
}

}  // namespace

HolderIndex::HolderIndex() : shards_(new Shard[kShards]) {}

HolderIndex::~HolderIndex() {
  for (uint32_t i = 0; i < kShards; ++i) HolderTable::Free(HolderTable::Unpack(shards_[i].table, kShardBits));
}

int HolderIndex::Set(uint64_t fingerprint, TellingId telling, TierSet tiers) {
  Shard& shard = shards_[fingerprint >> (64 - kShardBits)];
  const MutexLock lock(&shard.mutex);
  while (true) {
    HolderTable table = HolderTable::Unpack(shard.table.load(std::memory_order_relaxed), kShardBits);
    const HolderTable::Change change = table.Set(fingerprint, telling, tiers, &shard.filling);
    switch (change) {
      case HolderTable::Change::kNone: return 0;
      case HolderTable::Change::kAdded: return 1;
      case HolderTable::Change::kRemoved:
        if (shard.filling.gone > table.homes() / 2) {
          Remake(&shard, HolderTable::SizeFor(shard.filling.used - shard.filling.gone), {});
        }
        return -1;
      case HolderTable::Change::kFull: Remake(&shard, SizeWhenFull(table, shard.filling), {});
    }
  }
}

void HolderIndex::Remake(Shard* shard, uint32_t size, const TellingSet& lost) {
  const HolderTable before = HolderTable::Unpack(shard->table.load(std::memory_order_relaxed), kShardBits);
  const HolderTable made = before.Remade(size, lost, &shard->filling);
  table_bytes_.fetch_add(made.memory_bytes(), std::memory_order_relaxed);
  shard->table.store(made.Pack(), std::memory_order_seq_cst);
  if (!before.none()) readers_.Retire(before);
  Collect();
}

void HolderIndex::Sweep(uint32_t which, const TellingSet& lost) {
  Shard& shard = shards_[which];
  const MutexLock lock(&shard.mutex);
  const HolderTable table = HolderTable::Unpack(shard.table.load(std::memory_order_relaxed), kShardBits);
  const HolderTable::Left left = table.WithoutLost(lost);
  if (left.dropped) Remake(&shard, HolderTable::SizeFor(left.cells), lost);
}

}  // namespace kvist::controller
