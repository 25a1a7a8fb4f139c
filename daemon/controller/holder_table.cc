#include "daemon/controller/holder_table.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "storage/base/check.h"

namespace kvist::controller {
namespace {

// Larger tables are mappings of their own: a table is replaced by one half as large again, which no heap's hole would ever fit.
constexpr uint64_t kMappedFrom = 64 * 1024;
constexpr uint64_t kPage = 4096;

uint64_t MappedBytes(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

constexpr uint32_t kHomesMin = 16;

}  // namespace

HolderTable::~HolderTable() {
  if (cells_ == nullptr) return;
  const uint64_t bytes = BytesOf(homes_);
  if (bytes >= kMappedFrom) {
    ::munmap(cells_, MappedBytes(bytes));
  } else {
    std::free(cells_);
  }
}

void HolderTable::Swap(HolderTable* other) {
  std::swap(cells_, other->cells_);
  std::swap(homes_, other->homes_);
  std::swap(used_, other->used_);
  std::swap(top_bits_, other->top_bits_);
}

void HolderTable::Allocate(uint32_t homes) {
  const uint64_t bytes = BytesOf(homes);
  void* cells = nullptr;
  if (bytes >= kMappedFrom) {
    cells = ::mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVIST_CHECK(cells != MAP_FAILED);
  } else {
    cells = std::calloc(1, bytes);
    KVIST_CHECK(cells != nullptr);
  }
  cells_ = static_cast<Cell*>(cells);
  homes_ = homes;
}

uint64_t HolderTable::memory_bytes() const {
  if (cells_ == nullptr) return 0;
  const uint64_t bytes = BytesOf(homes_);
  return bytes >= kMappedFrom ? MappedBytes(bytes) : ::malloc_usable_size(cells_) + sizeof(size_t);
}

HolderTable::Change HolderTable::Set(uint64_t fingerprint, TellingId telling, TierSet tiers) {
  if (cells_ == nullptr) return tiers.none() ? Change::kNone : Change::kFull;
  Cell* const first = const_cast<Cell*>(FirstOf(fingerprint));
  Holder* mine = nullptr;
  Holder* free = nullptr;
  Cell* end = first;  // behind the last cell of this fingerprint
  for (; end->holders[0] != 0 && end->fingerprint == fingerprint; ++end) {
    for (Holder& holder : end->holders) {
      if (holder == 0) {
        if (free == nullptr) free = &holder;
        break;
      }
      if (TellingOf(holder) == telling) mine = &holder;
    }
  }
  if (mine != nullptr && !tiers.none()) {
    *mine = static_cast<Holder>(telling << kRestTiers | tiers.bits);
    return Change::kNone;
  }
  if (mine != nullptr) {  // the last holder takes its place
    Cell* const last = end - 1;
    uint32_t at = kPerCell - 1;
    while (last->holders[at] == 0) --at;
    *mine = last->holders[at];
    last->holders[at] = 0;
    if (at == 0) Erase(last);
    return Change::kRemoved;
  }
  if (tiers.none()) return Change::kNone;
  const auto holder = static_cast<Holder>(telling << kRestTiers | tiers.bits);
  if (free != nullptr) {
    *free = holder;
    return Change::kAdded;
  }
  // What comes after it is pushed on to the next gap.
  const Cell* const back = cells_ + Places(homes_) - 1;
  Cell* gap = end;
  while (gap->holders[0] != 0) ++gap;
  if (gap == back || used_ + 1 > homes_ / 8 * 7) return Change::kFull;
  std::memmove(end + 1, end, static_cast<size_t>(gap - end) * sizeof(Cell));
  *end = Cell{fingerprint, {holder}};
  ++used_;
  return Change::kAdded;
}

void HolderTable::Erase(Cell* cell) {
  // What was pushed on beyond its home moves back.
  Cell* next = cell + 1;
  while (next->holders[0] != 0 && HomeOf(next->fingerprint) < static_cast<uint32_t>(next - cells_)) ++next;
  std::memmove(cell, cell + 1, static_cast<size_t>(next - cell - 1) * sizeof(Cell));
  next[-1] = Cell{};
  --used_;
}

HolderTable::Left HolderTable::WithoutDead(const TellingSet& dead) const {
  Left left;
  uint32_t holders = 0;
  const Cell* before = nullptr;
  if (cells_ == nullptr) return left;
  for (const Cell* cell = cells_; cell != cells_ + Places(homes_); ++cell) {
    if (cell->holders[0] == 0) continue;
    if (before == nullptr || before->fingerprint != cell->fingerprint) {
      left.cells += (holders + kPerCell - 1) / kPerCell;
      holders = 0;
    }
    before = cell;
    for (const Holder holder : cell->holders) {
      if (holder == 0) break;
      if (dead[TellingOf(holder)]) {
        left.dropped = true;
      } else {
        ++holders;
      }
    }
  }
  left.cells += (holders + kPerCell - 1) / kPerCell;
  return left;
}

HolderTable HolderTable::Remade(uint32_t homes, const TellingSet* dead) const {
  for (;; homes += homes / 2) {
    HolderTable made(top_bits_);
    made.Allocate(homes);
    if (cells_ == nullptr) return made;
    Cell* const back = made.cells_ + Places(homes) - 1;
    Cell* next = made.cells_;  // the first place behind what is written
    Cell* filling = nullptr;   // the last cell written
    uint32_t held = 0;         // its holders
    bool fits = true;
    for (const Cell* cell = cells_; fits && cell != cells_ + Places(homes_); ++cell) {
      for (const Holder holder : cell->holders) {
        if (holder == 0) break;
        if (dead != nullptr && (*dead)[TellingOf(holder)]) continue;
        if (filling == nullptr || filling->fingerprint != cell->fingerprint || held == kPerCell) {
          filling = std::max(next, made.cells_ + made.HomeOf(cell->fingerprint));
          if (filling >= back) {  // all near the end: a larger table has more room there
            fits = false;
            break;
          }
          next = filling + 1;
          filling->fingerprint = cell->fingerprint;
          held = 0;
          ++made.used_;
        }
        filling->holders[held++] = holder;
      }
    }
    if (fits) return made;
  }
}

uint32_t HolderTable::HomesFor(uint32_t cells) { return std::max(kHomesMin, cells + cells / 2); }

uint32_t HolderTable::homes_when_full() const { return std::max(kHomesMin, homes_ + homes_ / 2); }

bool HolderTable::sparse() const { return homes_ > 4 * kHomesMin && used_ < homes_ / 4; }

bool HolderTable::Sound() const {
  if (cells_ == nullptr) return used_ == 0;
  uint32_t used = 0;
  const uint32_t places = Places(homes_);
  for (uint32_t at = 0; at < places; ++at) {
    const Cell& cell = cells_[at];
    if (cell.holders[0] == 0) {
      if (cell.holders[1] != 0 || cell.holders[2] != 0 || cell.holders[3] != 0) return false;
      continue;
    }
    ++used;
    const uint32_t home = HomeOf(cell.fingerprint);
    if (home > at) return false;
    if (home < at && (cells_[at - 1].holders[0] == 0 || cells_[at - 1].fingerprint > cell.fingerprint)) return false;
    for (uint32_t i = 1; i < kPerCell; ++i) {
      if (cell.holders[i] != 0 && cell.holders[i - 1] == 0) return false;
    }
  }
  return used == used_ && cells_[places - 1].holders[0] == 0 && used_ <= homes_;
}

}  // namespace kvist::controller
