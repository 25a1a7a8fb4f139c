#include "daemon/controller/holder_table.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "storage/base/check.h"

namespace kvist::controller {
namespace {

// Larger tables are mappings of their own: a table is replaced by one half as large again, which no heap's hole would ever fit.
constexpr uint64_t kMappedFrom = 64 * 1024;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kLine = 64;

uint64_t RoundedTo(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

HolderTable HolderTable::Make(uint32_t size, uint32_t top_bits) {
  KVIST_CHECK(size < kSizes);
  HolderTable table(nullptr, size, top_bits);
  void* cells = nullptr;
  if (table.bytes() >= kMappedFrom) {
    cells = ::mmap(nullptr, RoundedTo(table.bytes(), kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVIST_CHECK(cells != MAP_FAILED);
  } else {
    const uint64_t bytes = RoundedTo(table.bytes(), kLine);
    cells = std::aligned_alloc(kLine, bytes);
    KVIST_CHECK(cells != nullptr);
    std::memset(cells, 0, bytes);
  }
  table.cells_ = static_cast<Cell*>(cells);
  return table;
}

void HolderTable::Free(HolderTable table) {
  if (table.cells_ == nullptr) return;
  if (table.bytes() >= kMappedFrom) {
    ::munmap(table.cells_, RoundedTo(table.bytes(), kPage));
  } else {
    std::free(table.cells_);
  }
}

uint64_t HolderTable::memory_bytes() const {
  if (cells_ == nullptr) return 0;
  return bytes() >= kMappedFrom ? RoundedTo(bytes(), kPage) : ::malloc_usable_size(cells_) + sizeof(size_t);
}

uint32_t HolderTable::SizeFor(uint32_t cells) {
  return static_cast<uint32_t>(std::ranges::lower_bound(kHomes, cells + cells / 2) - kHomes.begin());
}

void HolderTable::Write(Cell* cell, uint64_t fingerprint, uint64_t holders) {
  cell->holders.store(0, std::memory_order_release);
  cell->fingerprint.store(fingerprint, std::memory_order_release);
  cell->holders.store(holders, std::memory_order_release);
}

HolderTable::Change HolderTable::Set(uint64_t fingerprint, TellingId telling, TierSet tiers, Filling* filling) {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // nobody else writes
  if (cells_ == nullptr) return tiers.none() ? Change::kNone : Change::kFull;
  fingerprint = Named(fingerprint);
  const uint64_t holder = tiers.none() ? 0 : uint64_t{telling} << kRestTiers | tiers.bits;
  Cell* const home = cells_ + HomeOf(fingerprint);
  Cell* cell = home;
  while (cell->fingerprint.load(kRelaxed) != kEmpty && cell->fingerprint.load(kRelaxed) < fingerprint) ++cell;
  Cell* free_in = nullptr;  // a cell of this fingerprint with room
  uint32_t free_at = 0;
  for (; cell->fingerprint.load(kRelaxed) == fingerprint; ++cell) {
    const uint64_t holders = cell->holders.load(kRelaxed);
    for (uint32_t at = 0; at < kPerCell * kHolderBits; at += kHolderBits) {
      const uint64_t one = holders >> at & kHolderMask;
      if (one == 0 && free_in == nullptr) {
        free_in = cell;
        free_at = at;
      }
      if (one == 0 || one >> kRestTiers != telling) continue;
      const uint64_t now = (holders & ~(kHolderMask << at)) | holder << at;
      cell->holders.store(now, std::memory_order_release);
      if (now == 0) ++filling->gone;
      return holder == 0 ? Change::kRemoved : Change::kNone;
    }
  }
  if (holder == 0) return Change::kNone;
  if (free_in != nullptr) {
    const uint64_t holders = free_in->holders.load(kRelaxed);
    if (holders == 0) --filling->gone;
    free_in->holders.store(holders | holder << free_at, std::memory_order_release);
    return Change::kAdded;
  }
  // `cell` is the first greater one, or empty. One just before it that is gone may become this one.
  if (cell != home && (cell - 1)->holders.load(kRelaxed) == 0) {
    Write(cell - 1, fingerprint, holder);
    --filling->gone;
    return Change::kAdded;
  }
  // Else what comes after is pushed on, into the next place that is empty or gone.
  Cell* gap = cell;
  while (gap->fingerprint.load(kRelaxed) != kEmpty && gap->holders.load(kRelaxed) != 0) ++gap;
  if (gap->fingerprint.load(kRelaxed) != kEmpty) {
    --filling->gone;
  } else {
    if (gap == cells_ + places() - 1 || filling->used + 1 > homes() / 8 * 7) return Change::kFull;
    ++filling->used;
  }
  for (; gap != cell; --gap) Write(gap, (gap - 1)->fingerprint.load(kRelaxed), (gap - 1)->holders.load(kRelaxed));
  Write(cell, fingerprint, holder);
  return Change::kAdded;
}

HolderTable::Left HolderTable::WithoutLost(const TellingSet& lost) const {
  Left left;
  if (cells_ == nullptr) return left;
  uint32_t held = 0;  // of the fingerprint
  uint64_t fingerprint = kEmpty;
  for (const Cell* cell = cells_; cell != cells_ + places(); ++cell) {
    const uint64_t its = cell->fingerprint.load(std::memory_order_relaxed);
    if (its == kEmpty) continue;
    if (its != fingerprint) {
      left.cells += (held + kPerCell - 1) / kPerCell;
      held = 0;
      fingerprint = its;
    }
    for (uint64_t holders = cell->holders.load(std::memory_order_relaxed); holders != 0; holders >>= kHolderBits) {
      const uint64_t holder = holders & kHolderMask;
      if (holder == 0) continue;
      if (lost[holder >> kRestTiers]) {
        left.dropped = true;
      } else {
        ++held;
      }
    }
  }
  left.cells += (held + kPerCell - 1) / kPerCell;
  return left;
}

HolderTable HolderTable::Remade(uint32_t size, const TellingSet& lost, Filling* filling) const {
  const bool any_lost = lost.any();
  for (;; ++size) {
    HolderTable made = Make(size, top_bits_);
    *filling = {};
    if (cells_ == nullptr) return made;
    Cell* const back = made.cells_ + made.places() - 1;
    Cell* next = made.cells_;             // the first place behind what is written
    uint64_t writing = kEmpty, held = 0;  // what is gathered for one cell
    uint32_t count = 0;
    bool fits = true;
    const auto write = [&] {
      if (count == 0) return;
      Cell* const place = std::max(next, made.cells_ + made.HomeOf(writing));
      fits = place < back;  // else all near the end: a larger table has more room there
      if (!fits) return;
      place->fingerprint.store(writing, std::memory_order_relaxed);
      place->holders.store(held, std::memory_order_relaxed);
      next = place + 1;
      ++filling->used;
      held = count = 0;
    };
    for (const Cell* cell = cells_; fits && cell != cells_ + places(); ++cell) {
      const uint64_t fingerprint = cell->fingerprint.load(std::memory_order_relaxed);
      uint64_t holders = cell->holders.load(std::memory_order_relaxed);
      if (fingerprint == kEmpty || holders == 0) continue;
      if (fingerprint != writing) write();
      writing = fingerprint;
      for (; fits && holders != 0; holders >>= kHolderBits) {
        const uint64_t holder = holders & kHolderMask;
        if (holder == 0 || (any_lost && lost[holder >> kRestTiers])) continue;
        held |= holder << (kHolderBits * count);
        if (++count == kPerCell) write();
      }
    }
    if (fits) write();
    if (fits && filling->used <= made.homes() / 8 * 7) return made;
    Free(made);
  }
}

bool HolderTable::Sound(const Filling& filling) const {
  if (cells_ == nullptr) return filling.used == 0;
  Filling found;
  uint64_t before = kEmpty;
  for (uint32_t at = 0; at < places(); ++at) {
    const uint64_t fingerprint = cells_[at].fingerprint, holders = cells_[at].holders;
    if (fingerprint == kEmpty) {
      if (holders != 0) return false;
    } else {
      ++found.used;
      if (holders == 0) ++found.gone;
      const uint32_t home = HomeOf(fingerprint);
      if (home > at || (home < at && (before == kEmpty || before > fingerprint))) return false;
    }
    before = fingerprint;
  }
  return found.used == filling.used && found.gone == filling.gone && before == kEmpty;
}

}  // namespace kvist::controller
