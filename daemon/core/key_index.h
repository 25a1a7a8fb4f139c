#ifndef KVIST_DAEMON_CORE_KEY_INDEX_H_
#define KVIST_DAEMON_CORE_KEY_INDEX_H_

#include <cstdint>
#include <memory>

#include "storage/base/ids.h"

namespace kvist::core {

using ChunkIndex = uint32_t;  // a place in the ChunkTable
inline constexpr ChunkIndex kNoChunk = UINT32_MAX;

// Hash of (space, group, key), seeded per daemon: opaque keys are chosen by clients, who must not be able to choose collisions.
struct KeyHash {
  uint64_t seed[4];
  uint32_t operator()(SpaceId space, GroupId group, const ChunkKey& key) const;
};

// Open-addressing hash table from 32-bit hashes to chunk places; the caller compares keys (they lie in the ChunkTable).
//
//   cell (8 bytes) = | hash 32 | place + 1, or 0 = empty, or kGone |     linear probing, at most 7/8 full
//
// Grows without a pause: a table twice as large is begun, and every later change moves a few cells over; meanwhile lookups ask
// both. Each operation is O(1) worst case but for the probe length. 9 to 18 bytes per chunk.
// Threads: one.
class KeyIndex {
 public:
  KeyIndex();
  ~KeyIndex();

  void Insert(uint32_t hash, ChunkIndex chunk);
  void Erase(uint32_t hash, ChunkIndex chunk);  // must be there

  // Calls matches(chunk) for each chunk of that hash until it returns true; that chunk, or kNoChunk.
  template <class F>
  ChunkIndex Find(uint32_t hash, F matches) const {
    for (const Table* table : {&table_, &old_}) {
      if (table->cells == nullptr) continue;
      for (uint64_t at = hash & table->mask;; at = (at + 1) & table->mask) {
        const Cell cell = table->cells[at];
        if (cell.place == kEmpty) break;
        if (cell.hash == hash && cell.place != kGone && matches(cell.place - 1)) return cell.place - 1;
      }
    }
    return kNoChunk;
  }
  // Asks the processor for the cells that Find(hash) will read.
  void Prefetch(uint32_t hash) const {
    __builtin_prefetch(&table_.cells[hash & table_.mask]);
    if (old_.cells != nullptr) __builtin_prefetch(&old_.cells[hash & old_.mask]);
  }
  // A chunk that may be the one of that hash (by hash alone): for prefetching it. kNoChunk when none is.
  ChunkIndex Candidate(uint32_t hash) const {
    return Find(hash, [](ChunkIndex) { return true; });
  }

  uint64_t size() const { return size_; }
  uint64_t memory_bytes() const;

 private:
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kGone = UINT32_MAX;
  struct Cell {
    uint32_t hash;
    uint32_t place;
  };
  struct Table {
    Cell* cells = nullptr;  // anonymous mapping or calloc: fresh cells cost nothing until touched
    uint64_t mask = 0;
  };
  static Table Allocate(uint64_t cells);
  static void Deallocate(Table* table);
  void Put(Cell cell);
  bool Remove(Table* table, uint32_t hash, ChunkIndex chunk);
  void Grow();
  void Migrate(uint32_t steps);

  Table table_;
  Table old_;            // being emptied into table_, or null
  uint64_t cursor_ = 0;  // cells of old_ below it have been moved
  uint64_t used_ = 0;    // cells of table_ that aren't empty
  uint64_t size_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_KEY_INDEX_H_
