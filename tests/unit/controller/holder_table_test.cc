#include "daemon/controller/holder_table.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

namespace kvist::controller {
namespace {

using Model = std::map<uint64_t, std::map<TellingId, uint8_t>>;

std::map<TellingId, uint8_t> HoldersIn(const HolderTable& table, uint64_t fingerprint) {
  std::map<TellingId, uint8_t> found;
  table.Visit(fingerprint, [&](TellingId telling, TierSet tiers) {
    REQUIRE(!tiers.none());
    REQUIRE(found.emplace(telling, tiers.bits).second);  // each once
  });
  return found;
}

void RequireEqual(const HolderTable& table, const Model& model) {
  REQUIRE(table.Sound());
  for (const auto& [fingerprint, holders] : model) REQUIRE(HoldersIn(table, fingerprint) == holders);
}

// As its owner does it.
void Set(HolderTable* table, Model* model, uint64_t fingerprint, TellingId telling, TierSet tiers) {
  const bool had = (*model)[fingerprint].contains(telling);
  auto change = table->Set(fingerprint, telling, tiers);
  if (change == HolderTable::Change::kFull) {
    RequireEqual(*table, *model);  // nothing has changed
    *table = table->Remade(table->homes_when_full(), nullptr);
    change = table->Set(fingerprint, telling, tiers);
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
  for (int i = 0; i < 300; ++i) fingerprints.push_back((random() & mask & (UINT64_MAX >> 12)) | set);
  HolderTable table(12);
  Model model;
  for (int step = 0; step < 12'000; ++step) {
    const uint64_t fingerprint = fingerprints[random() % fingerprints.size()];
    const auto telling = static_cast<TellingId>(kTellingsMax - 1 - random() % tellings);
    const bool add = random() % 100 < (step / 3000 % 2 == 0 ? 80u : 20u);
    Set(&table, &model, fingerprint, telling, {static_cast<uint8_t>(add ? 1 + random() % TierSet::kAll : 0)});
    if (step % 500 == 0) RequireEqual(table, model);
    if (step % 1777 == 0) {  // some tellings are void
      TellingSet dead;
      for (uint32_t t = 0; t < tellings; ++t) dead[kTellingsMax - 1 - t] = random() % 2 == 0;
      bool any = false;
      for (auto& [one, holders] : model)
        any = std::erase_if(holders, [&](const auto& h) { return dead[h.first]; }) > 0 || any;
      const HolderTable::Left left = table.WithoutDead(dead);
      REQUIRE(left.dropped == any);
      table = table.Remade(HolderTable::HomesFor(left.cells), &dead);
      REQUIRE(table.used() == left.cells);
      RequireEqual(table, model);
    }
  }
  RequireEqual(table, model);
}

TEST_CASE("HolderTable packs what is remade: four holders a cell") {
  HolderTable table(0);
  Model model;
  for (uint64_t f = 0; f < 100; ++f) {
    for (TellingId t = 0; t < 16; ++t) Set(&table, &model, f << 40, t, TierSet::Of(RestTier::kDram));
  }
  REQUIRE(table.used() == 400);
  TellingSet dead;
  for (TellingId t = 0; t < 16; ++t) dead[t] = t % 2 == 0;
  REQUIRE(table.WithoutDead(dead).cells == 200);
  REQUIRE(table.Remade(HolderTable::HomesFor(200), &dead).used() == 200);
}

TEST_CASE("HolderTable holds nothing, and takes no memory, before it has room") {
  HolderTable table(0);
  REQUIRE(table.memory_bytes() == 0);
  REQUIRE(HoldersIn(table, 7).empty());
  REQUIRE(table.Set(7, 1, {}) == HolderTable::Change::kNone);
  REQUIRE(table.Set(7, 1, {1}) == HolderTable::Change::kFull);
  REQUIRE(table.Remade(16, nullptr).Set(7, 1, {1}) == HolderTable::Change::kAdded);
}

}  // namespace
}  // namespace kvist::controller
