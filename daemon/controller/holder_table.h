#ifndef KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_
#define KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_

#include <bitset>
#include <cstdint>

#include "daemon/controller/tier_set.h"

namespace kvist::controller {

// One telling of a node: what it has said since one SnapshotBegin. Reused when nothing of it is left anywhere.
using TellingId = uint16_t;
inline constexpr uint32_t kTellingsMax = 8192;  // 13 bits of a Holder
using TellingSet = std::bitset<kTellingsMax>;

// Who holds a chunk, by fingerprint: a hash table that is sorted.
//
//   cell (16 bytes) = | fingerprint 64 | holder 16 | holder 16 | holder 16 | holder 16 |     4 cells a cache line
//   holder          = | telling 13 | tiers 3 |        0: none; the holders of a cell come first; an empty cell has none
//
// A fingerprint's home is its rank among all 2^64, scaled to the cells, and cells lie in the order of fingerprints, at their homes or
// after them without a gap between. So a search ends at the first greater fingerprint, one that isn't there costs no more than one that
// is, and a chunk with more than four holders has several cells, side by side. At most 7/8 full; a few cells more catch what
// is pushed beyond the last home. A chunk with one holder takes 18 to 27 bytes after growth by a half; each further holder up to the
// fourth takes nothing, those after it 5 to 7 bytes.
//
// It never grows by itself: Set says that it is full, and whoever owns it makes a larger one of it (Remade), which needs reading only.
//
// Lifecycle: made empty, without memory; Remade gives it room.
// Threads:   one, or many that only read.
class HolderTable {
 public:
  enum class Change : uint8_t { kNone, kAdded, kRemoved, kFull };

  // `top_bits`: fingerprints of this table are equal in so many first bits (it is a shard of a larger one), less than 32.
  explicit HolderTable(uint32_t top_bits) : top_bits_(static_cast<uint8_t>(top_bits)) {}
  HolderTable(HolderTable&& other) noexcept { Swap(&other); }
  HolderTable& operator=(HolderTable&& other) noexcept {
    Swap(&other);
    return *this;
  }
  ~HolderTable();

  // The telling has the chunk in those tiers now; none: no more. kAdded and kRemoved: it hadn't, it had. kFull: nothing has changed, and there
  // has to be more room first.
  Change Set(uint64_t fingerprint, TellingId telling, TierSet tiers);

  // Calls see(telling, tiers) for each holder.
  template <class F>
  void Visit(uint64_t fingerprint, F see) const {
    if (cells_ == nullptr) return;
    for (const Cell* cell = FirstOf(fingerprint); cell->holders[0] != 0 && cell->fingerprint == fingerprint; ++cell) {
      for (const Holder holder : cell->holders) {
        if (holder == 0) break;
        see(TellingOf(holder), TiersOf(holder));
      }
    }
  }

  // The same with another number of homes, and without the holders in `dead`. There has to be room for all.
  HolderTable Remade(uint32_t homes, const TellingSet* dead) const;
  // Cells that Remade would use; and whether any holder is in `dead`.
  struct Left {
    uint32_t cells = 0;
    bool dropped = false;
  };
  Left WithoutDead(const TellingSet& dead) const;
  // How many homes a table is to have for so many cells.
  static uint32_t HomesFor(uint32_t cells);
  uint32_t homes_when_full() const;  // what to remake it with after kFull
  bool sparse() const;               // less than a quarter full: HomesFor(used()) saves memory

  uint32_t used() const { return used_; }
  uint64_t memory_bytes() const;  // as taken from the system

  // Where a search for it begins, to be prefetched; from numbers that may be out of date.
  static uint32_t Home(uint64_t fingerprint, uint32_t top_bits, uint32_t homes) {
    return static_cast<uint32_t>(((fingerprint << top_bits) >> 32) * homes >> 32);
  }
  const void* cells() const { return cells_; }
  uint32_t homes() const { return homes_; }
  static constexpr uint32_t kCellBytes = 16;

  // For tests: the order and places of all cells are as promised.
  bool Sound() const;

 private:
  using Holder = uint16_t;
  static constexpr uint32_t kPerCell = 4;
  struct Cell {
    uint64_t fingerprint;
    Holder holders[kPerCell];
  };
  static_assert(sizeof(Cell) == kCellBytes);

  static TellingId TellingOf(Holder holder) { return static_cast<TellingId>(holder >> kRestTiers); }
  static TierSet TiersOf(Holder holder) { return {static_cast<uint8_t>(holder & TierSet::kAll)}; }
  static uint32_t Places(uint32_t homes) { return homes + homes / 16 + 32; }
  static uint64_t BytesOf(uint32_t homes) { return uint64_t{Places(homes)} * sizeof(Cell); }

  void Swap(HolderTable* other);
  void Allocate(uint32_t homes);
  uint32_t HomeOf(uint64_t fingerprint) const { return Home(fingerprint, top_bits_, homes_); }
  // The first cell that is empty or not less; the last place is always empty.
  const Cell* FirstOf(uint64_t fingerprint) const {
    const Cell* cell = cells_ + HomeOf(fingerprint);
    while (cell->holders[0] != 0 && cell->fingerprint < fingerprint) ++cell;
    return cell;
  }
  void Erase(Cell* cell);

  Cell* cells_ = nullptr;
  uint32_t homes_ = 0;
  uint32_t used_ = 0;  // cells
  uint8_t top_bits_ = 0;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_
