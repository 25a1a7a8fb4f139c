#include "daemon/controller/holder_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace kvist::controller {
namespace {

using Model = std::map<uint64_t, std::map<TellingId, uint8_t>>;

// As its owner has it.
struct Owned {
  explicit Owned(uint32_t top_bits) : table(HolderTable::Unpack(0, top_bits)) {}
  ~Owned() { HolderTable::Free(table); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  void Remake(uint32_t size, const TellingSet& lost) {
    const HolderTable before = table;
    table = before.Remade(size, lost, &filling);
    HolderTable::Free(before);
  }

  HolderTable table;
  HolderTable::Filling filling;
};

std::map<TellingId, uint8_t> HoldersIn(const HolderTable& table, uint64_t fingerprint) {
  std::map<TellingId, uint8_t> found;
  table.Visit(fingerprint, [&](TellingId telling, TierSet tiers) {
    REQUIRE(!tiers.none());
    REQUIRE(found.emplace(telling, tiers.bits).second);  // each once, for nobody writes
  });
  return found;
}

void RequireEqual(const Owned& owned, const Model& model) {
  REQUIRE(owned.table.Sound(owned.filling));
  for (const auto& [fingerprint, holders] : model) REQUIRE(HoldersIn(owned.table, fingerprint) == holders);
}

void Set(Owned* owned, Model* model, uint64_t fingerprint, TellingId telling, TierSet tiers) {
  const bool had = (*model)[fingerprint].contains(telling);
  auto change = owned->table.Set(fingerprint, telling, tiers, &owned->filling);
  if (change == HolderTable::Change::kFull) {
    RequireEqual(*owned, *model);  // nothing has changed
    owned->Remake(owned->table.none() ? 0 : owned->table.size() + 1, {});
    change = owned->table.Set(fingerprint, telling, tiers, &owned->filling);
    REQUIRE(change != HolderTable::Change::kFull);
  }
  using Change = HolderTable::Change;
  REQUIRE(change == (tiers.none() ? (had ? Change::kRemoved : Change::kNone) : (had ? Change::kNone : Change::kAdded)));
  if (tiers.none()) {
    (*model)[fingerprint].erase(telling);
  } else {
    (*model)[fingerprint][telling] = tiers.bits;
  }
}

TEST_CASE("HolderTable does what a map of maps does, however its fingerprints lie") {
  const auto seed = std::random_device()();
  // Which bits of fingerprints differ: all, few in the middle, the last (one home for all), the first; and those that end the table.
  using Bits = std::pair<uint64_t, uint64_t>;
  const auto [mask, set] = GENERATE(Bits{UINT64_MAX, 0}, Bits{uint64_t{0xff} << 30, 0}, Bits{0xff, 0},
                                    Bits{uint64_t{0xff} << 44, 0}, Bits{0xff, 0x000fffffffffff00});
  const uint32_t tellings = GENERATE(1u, 3u, 64u);
  INFO("seed " << seed << ", mask " << mask << ", tellings " << tellings);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> fingerprints;
  for (int i = 0; i < 300; ++i) fingerprints.push_back(std::max<uint64_t>(2, (random() & mask & (UINT64_MAX >> 12)) | set));
  Owned table(12);
  Model model;
  for (int step = 0; step < 12'000; ++step) {
    const uint64_t fingerprint = fingerprints[random() % fingerprints.size()];
    const auto telling = static_cast<TellingId>(kTellingsMax - 1 - random() % tellings);
    const bool add = random() % 100 < (step / 3000 % 2 == 0 ? 80u : 20u);
    Set(&table, &model, fingerprint, telling, {static_cast<uint8_t>(add ? 1 + random() % TierSet::kAll : 0)});
    if (step % 500 == 0) RequireEqual(table, model);
    if (step % 1777 == 0) {  // some tellings are void
      TellingSet lost;
      for (uint32_t t = 0; t < tellings; ++t) lost[kTellingsMax - 1 - t] = random() % 2 == 0;
      bool any = false;
      for (auto& [one, holders] : model)
        any = std::erase_if(holders, [&](const auto& h) { return lost[h.first]; }) > 0 || any;
      const HolderTable::Left left = table.table.WithoutLost(lost);
      REQUIRE(left.dropped == any);
      table.Remake(HolderTable::SizeFor(left.cells), lost);
      REQUIRE(table.filling.used == left.cells);
      RequireEqual(table, model);
    }
  }
  RequireEqual(table, model);
}

TEST_CASE("HolderTable packs what is remade: four holders a cell") {
  Owned table(0);
  Model model;
  for (uint64_t f = 0; f < 100; ++f) {
    for (TellingId t = 0; t < 16; ++t) Set(&table, &model, f << 40, t, TierSet::Of(RestTier::kDram));
  }
  REQUIRE(table.filling.used == 400);
  TellingSet lost;
  for (TellingId t = 0; t < 16; ++t) lost[t] = t % 2 == 0;
  REQUIRE(table.table.WithoutLost(lost).cells == 200);
  table.Remake(HolderTable::SizeFor(200), lost);
  REQUIRE(table.filling.used == 200);
}

TEST_CASE("HolderTable holds nothing, and takes no memory, before it has room") {
  Owned none(0);
  REQUIRE(none.table.memory_bytes() == 0);
  REQUIRE(HoldersIn(none.table, 7).empty());
  REQUIRE(none.table.Set(7, 1, {}, &none.filling) == HolderTable::Change::kNone);
  REQUIRE(none.table.Set(7, 1, {1}, &none.filling) == HolderTable::Change::kFull);
  none.Remake(0, {});
  REQUIRE(none.table.Set(7, 1, {1}, &none.filling) == HolderTable::Change::kAdded);
  REQUIRE(none.table.memory_bytes() >= none.table.homes() * 16);
}

}  // namespace
}  // namespace kvist::controller
