#include "daemon/core/key_index.h"

#include <cstdlib>
#include <utility>

#include "storage/base/check.h"

namespace kvist::core {
namespace {

uint64_t Fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kInitialCells = 1024;
// Cells moved per change. The new table is twice the old one, so it takes at least 7/8 of the old size in inserts to fill it;
// 8 steps each empty the old one long before.
constexpr uint32_t kMigrateSteps = 8;

}  // namespace

uint32_t KeyHash::operator()(SpaceId space, GroupId group, const ChunkKey& key) const {
  const uint64_t where = uint64_t{space.value} << 16 | group.value;
  const uint64_t h =
      Fold(key.word(0) ^ seed[0], key.word(1) ^ seed[1]) ^ Fold(key.word(2) ^ seed[2] ^ where, key.word(3) ^ seed[3]);
  return static_cast<uint32_t>(Fold(h ^ where, seed[0] | 1));
}

KeyIndex::KeyIndex() : table_(Allocate(kInitialCells)) {}

KeyIndex::~KeyIndex() {
  Deallocate(&table_);
  Deallocate(&old_);
}

KeyIndex::Table KeyIndex::Allocate(uint64_t cells) {
  Table table;
  table.cells = static_cast<Cell*>(std::calloc(cells, sizeof(Cell)));
  KVIST_CHECK(table.cells != nullptr);
  table.mask = cells - 1;
  return table;
}

void KeyIndex::Deallocate(Table* table) {
  std::free(table->cells);
  *table = Table{};
}

void KeyIndex::Insert(uint32_t hash, ChunkIndex chunk) {
  if (old_.cells != nullptr) Migrate(kMigrateSteps);
  if (used_ + 1 > (table_.mask + 1) / 8 * 7) Grow();
  Put({hash, chunk + 1});
  ++size_;
}

void KeyIndex::Put(Cell cell) {
  uint64_t at = cell.hash & table_.mask;
  while (table_.cells[at].place != kEmpty) at = (at + 1) & table_.mask;
  table_.cells[at] = cell;
  ++used_;
}

void KeyIndex::Erase(uint32_t hash, ChunkIndex chunk) {
  KVIST_CHECK(Remove(&table_, hash, chunk) || (old_.cells != nullptr && Remove(&old_, hash, chunk)));
  --size_;
  if (old_.cells != nullptr) Migrate(kMigrateSteps);
}

bool KeyIndex::Remove(Table* table, uint32_t hash, ChunkIndex chunk) {
  uint64_t hole = hash & table->mask;
  while (table->cells[hole].place != chunk + 1 || table->cells[hole].hash != hash) {
    if (table->cells[hole].place == kEmpty) return false;
    hole = (hole + 1) & table->mask;
  }
  if (table == &old_) {  // no inserts there any more: a mark keeps the probe runs whole
    table->cells[hole].place = kGone;
    return true;
  }
  // Close the hole by moving back each later cell of the run that may stand there, so that no marks pile up.
  for (uint64_t at = (hole + 1) & table->mask; table->cells[at].place != kEmpty; at = (at + 1) & table->mask) {
    const uint64_t home = table->cells[at].hash & table->mask;
    if (((at - home) & table->mask) >= ((at - hole) & table->mask)) {
      table->cells[hole] = table->cells[at];
      hole = at;
    }
  }
  table->cells[hole] = Cell{0, kEmpty};
  --used_;
  return true;
}

void KeyIndex::Grow() {
  while (old_.cells != nullptr) Migrate(kMigrateSteps);  // over long before, see kMigrateSteps
  old_ = std::exchange(table_, Allocate((table_.mask + 1) * 2));
  used_ = 0;
  cursor_ = 0;
}

void KeyIndex::Migrate(uint32_t steps) {
  for (; steps > 0 && cursor_ <= old_.mask; --steps, ++cursor_) {
    Cell& cell = old_.cells[cursor_];
    if (cell.place == kEmpty || cell.place == kGone) continue;
    Put(cell);
    cell.place = kGone;
  }
  if (cursor_ > old_.mask) Deallocate(&old_);
}

uint64_t KeyIndex::memory_bytes() const {
  uint64_t cells = table_.mask + 1;
  if (old_.cells != nullptr) cells += old_.mask + 1;
  return cells * sizeof(Cell);
}

}  // namespace kvist::core
