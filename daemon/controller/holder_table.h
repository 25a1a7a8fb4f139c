#ifndef KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_
#define KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>

#include "daemon/controller/tier_set.h"

namespace kvist::controller {

// One telling of a node: what it has said since one SnapshotBegin. Reused when nothing of it is left anywhere.
using TellingId = uint16_t;
inline constexpr uint32_t kTellingsMax = 8192;  // 13 bits of a holder
using TellingSet = std::bitset<kTellingsMax>;

// Who holds a chunk, by fingerprint: a hash table that is sorted, with one writer and readers that never wait.
//
//   cell (16 bytes) = | fingerprint 64 | holder 16 | holder 16 | holder 16 | holder 16 |     4 cells a cache line
//   holder          = | telling 13 | tiers 3 |        0: none, anywhere in the cell; a cell without any is gone, one without fingerprint is empty
//
// A fingerprint's home is its rank among all 2^64, scaled to the homes; cells lie in the order of fingerprints, at their homes or after them,
// without an empty one between. So a search ends at the first greater fingerprint, one that isn't there costs no more than one that is,
// and a chunk with more than four holders has several cells, side by side. At most 7/8 full, and a few places more catch what is pushed
// beyond the last home: a chunk with up to four holders takes 19 to 29 bytes, each holder after those 5 to 8.
//
// What a reader sees, while the writer is anywhere in a change, even if it is stopped there: every holder that was there before and after. For
//   - a cell only ever moves to the right, as readers go, and is whole at its new place before the old one is overwritten;
//   - a cell that is overwritten loses its holders first, gets the other fingerprint, then the other's holders, each store a release; who has
//     read holders with acquire and then finds the same fingerprint still there has read a pair;
//   - what is removed leaves its place empty-handed, to be taken again or left behind when the table is remade.
// It may see a holder twice.
//
// It never grows by itself: Set says that it is full, and whoever owns it makes another of it (Remade).
//
// This is a view, as small as a pointer; it owns nothing. Lifecycle: Make, then Free when nobody can be reading any more.
// Threads: one calls Set at a time; Visit, Remade and WithoutLost at any moment (the latter two, for their answer to hold, not beside Set).
class HolderTable {
 public:
  // What the writer keeps of it.
  struct Filling {
    uint32_t used = 0;  // cells that aren't empty
    uint32_t gone = 0;  // of those
  };
  enum class Change : uint8_t { kNone, kAdded, kRemoved, kFull };

  // Sizes grow by a half.
  static constexpr uint32_t kSizes = 44;
  // The one to hold so many cells, and a third of its homes free.
  static uint32_t SizeFor(uint32_t cells);

  HolderTable() = default;  // none: holds nothing, is always full
  // All fingerprints of a table are equal in so many first bits (it is a shard of a larger one), less than 32.
  static HolderTable Make(uint32_t size, uint32_t top_bits);
  static void Free(HolderTable table);
  // As one word, for an atomic.
  uint64_t Pack() const { return reinterpret_cast<uint64_t>(cells_) | size_; }
  static HolderTable Unpack(uint64_t word, uint32_t top_bits) {
    return HolderTable(reinterpret_cast<Cell*>(word & ~uint64_t{63}), static_cast<uint32_t>(word & 63), top_bits);
  }

  // The telling has the chunk in those tiers now; none: no more. kAdded and kRemoved: it hadn't, it had. kFull: nothing has changed, and there
  // has to be more room first.
  Change Set(uint64_t fingerprint, TellingId telling, TierSet tiers, Filling* filling);

  // Calls see(telling, tiers) for each holder.
  template <class F>
  void Visit(uint64_t fingerprint, F see) const {
    if (cells_ == nullptr) return;
    fingerprint = Named(fingerprint);
    const Cell* cell = cells_ + HomeOf(fingerprint);
    while (true) {  // the last place is always empty
      const uint64_t found = cell->fingerprint.load(std::memory_order_acquire);
      if (found == kEmpty || found > fingerprint) return;
      if (found < fingerprint) {
        ++cell;
        continue;
      }
      uint64_t holders = cell->holders.load(std::memory_order_acquire);
      if (cell->fingerprint.load(std::memory_order_relaxed) != found) continue;  // the writer is there: once more
      ++cell;
      for (; holders != 0; holders >>= kHolderBits) {
        const uint64_t holder = holders & kHolderMask;
        if (holder != 0)
          see(static_cast<TellingId>(holder >> kRestTiers), TierSet{static_cast<uint8_t>(holder & TierSet::kAll)});
      }
    }
  }

  // Reads where a search begins and does nothing with it: many of these at once wait for the memory together. A load and no prefetch, which does
  // nothing for a page that the TLB hasn't (README).
  void Touch(uint64_t fingerprint) const {
    if (cells_ == nullptr) return;
    const uint64_t read = cells_[HomeOf(Named(fingerprint))].fingerprint.load(std::memory_order_relaxed);
    asm volatile("" : : "r"(read));
  }

  // A table of another size or the same, without the holders in `lost` and what is gone. A larger one, if there isn't room for all.
  HolderTable Remade(uint32_t size, const TellingSet& lost, Filling* filling) const;
  // Cells that Remade would use; and whether any holder is in `lost`.
  struct Left {
    uint32_t cells = 0;
    bool dropped = false;
  };
  Left WithoutLost(const TellingSet& lost) const;

  bool none() const { return cells_ == nullptr; }
  uint32_t size() const { return size_; }
  uint32_t homes() const { return kHomes[size_]; }
  uint64_t memory_bytes() const;  // as taken from the system

  // For tests: all cells lie as promised, and are as many as that.
  bool Sound(const Filling& filling) const;

 private:
  static constexpr uint64_t kEmpty = 0;  // a fingerprint of 0 is taken for 1
  static constexpr uint32_t kPerCell = 4;
  static constexpr uint32_t kHolderBits = 16;
  static constexpr uint64_t kHolderMask = (1u << kHolderBits) - 1;
  struct Cell {
    std::atomic<uint64_t> fingerprint;
    std::atomic<uint64_t> holders;
  };
  static_assert(sizeof(Cell) == 16 && std::atomic<uint64_t>::is_always_lock_free);
  static constexpr std::array<uint32_t, kSizes> kHomes = [] {
    std::array<uint32_t, kSizes> homes{};
    uint64_t next = 16;
    for (uint32_t& one : homes) {
      one = static_cast<uint32_t>(next);
      next += next / 2;
    }
    return homes;
  }();
  static_assert(kHomes[kSizes - 1] > (1u << 28),
                "64 M chunks in 4,096 shards are 16,000; that all are in one is not to be thought of");

  HolderTable(Cell* cells, uint32_t size, uint32_t top_bits) : cells_(cells), size_(size), top_bits_(top_bits) {}

  static uint64_t Named(uint64_t fingerprint) { return fingerprint == kEmpty ? 1 : fingerprint; }
  uint32_t HomeOf(uint64_t fingerprint) const {
    return static_cast<uint32_t>(((fingerprint << top_bits_) >> 32) * kHomes[size_] >> 32);
  }
  uint32_t places() const { return homes() + homes() / 16 + 32; }
  uint64_t bytes() const { return uint64_t{places()} * sizeof(Cell); }
  // Writes a cell over one that has no holders, or is whole elsewhere.
  static void Write(Cell* cell, uint64_t fingerprint, uint64_t holders);

  Cell* cells_ = nullptr;  // aligned to 64 bytes
  uint32_t size_ = 0;
  uint32_t top_bits_ = 0;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_HOLDER_TABLE_H_
