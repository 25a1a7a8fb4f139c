#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr uint32_t kWindowChunks = 3;

SpaceSpec Hybrid(std::vector<ReuseRule> rules, uint32_t ranks = 1) {
  SpaceSpec spec = SpaceNamed("hybrid", std::vector<Bytes>(ranks, KiB(4)));
  const GroupSpec group = spec.groups[0];
  spec.groups.clear();
  for (const ReuseRule& rule : rules) {
    spec.groups.push_back(group);
    spec.groups.back().reuse = rule;
  }
  return spec;
}

// What each group has, as plain sets of positions of one prompt, and the answer by trying every position.
struct PlainCache {
  std::vector<ReuseRule> rules;
  std::vector<std::set<uint32_t>> has;  // [group]

  uint32_t Usable(uint32_t length) const {
    for (uint32_t position = length; position > 0; --position) {
      bool usable = true;
      for (size_t g = 0; g < rules.size(); ++g) {
        for (uint32_t k = 0; k < position; ++k) {
          const bool needed = rules[g].kind == GroupKind::kFull ||
                              (rules[g].kind == GroupKind::kWindow && k + rules[g].window_chunks >= position) ||
                              (rules[g].kind == GroupKind::kState && k + 1 == position);
          usable = usable && (!needed || has[g].contains(k));
        }
      }
      if (usable) return position;
    }
    return 0;
  }
};

std::vector<ChunkKey> Prompt(uint64_t prompt, uint32_t length) {
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < length; ++k) keys.push_back(KeyOf(prompt * 1000 + k));
  return keys;
}

TEST_CASE("A lookup finds the last position from which every group can go on, as a plain cache does") {
  const uint32_t seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const ReuseRule full, window{GroupKind::kWindow, kWindowChunks}, narrow{GroupKind::kWindow, 1}, state{GroupKind::kState};
  const std::vector<std::vector<ReuseRule>> shapes{{full},
                                                   {window},
                                                   {state},
                                                   {full, window},
                                                   {full, state},
                                                   {window, state},
                                                   {full, window, state},
                                                   {window, full, narrow, state}};
  for (const auto& rules : shapes) {
    for (int round = 0; round < 40; ++round) {
      CoreFixture f({.core = {}, .slab_bytes = KiB(256), .slabs = 4});
      const SessionId worker = f.Worker("engine", Hybrid(rules));
      const uint32_t length = 1 + static_cast<uint32_t>(random() % 12);
      const std::vector<ChunkKey> keys = Prompt(1, length);
      PlainCache plain{rules, std::vector<std::set<uint32_t>>(rules.size())};
      for (int step = 0; step < 25; ++step) {
        const auto group = static_cast<uint16_t>(random() % rules.size());
        const bool chained = rules[group].kind == GroupKind::kFull;
        const auto first = static_cast<uint32_t>(random() % length);
        const auto count = 1 + static_cast<uint32_t>(random() % (length - first));
        const auto store = f.Store(worker, {keys.begin() + first, keys.begin() + first + count},
                                   first > 0 ? std::optional(keys[first - 1]) : std::nullopt, GroupId{group});
        const bool kept = !chained || first == 0 || plain.has[group].contains(first - 1);
        uint32_t fresh = 0;
        for (uint32_t k = first; kept && k < first + count; ++k) fresh += plain.has[group].insert(k).second ? 1 : 0;
        REQUIRE(store.has_value() == (fresh > 0));
        if (store.has_value()) {
          REQUIRE(store->slots.size() == fresh);
          f.Finish(store->op);
        }
        const LookupAnswered hit = f.Lookup(worker, keys, absl::Seconds(random() % 2));
        REQUIRE(hit.chunks == plain.Usable(length));
      }
    }
  }
}

// Many groups with windows that are wide against the prompt, and holes: what a search goes back over many times.
TEST_CASE("A lookup over many groups of wide windows finds what a plain cache does, and asks for each chunk once") {
  const uint32_t seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  uint32_t hits = 0;
  for (int round = 0; round < 150; ++round) {
    CoreFixture f({.core = {}, .slab_bytes = KiB(4096), .slabs = 1});
    const uint32_t length = 2 + static_cast<uint32_t>(random() % 30);
    std::vector<ReuseRule> rules;
    for (size_t groups = 2 + random() % 14; rules.size() < groups;) {
      const bool window = random() % 3 > 0;
      rules.push_back({window ? GroupKind::kWindow : GroupKind::kState,
                       window ? 1 + static_cast<uint32_t>(random() % (length + 3)) : 0});
    }
    if (random() % 4 == 0) rules.push_back({GroupKind::kFull, 0});
    const SessionId worker = f.Worker("engine", Hybrid(rules));
    const std::vector<ChunkKey> keys = Prompt(1, length);
    PlainCache plain{rules, std::vector<std::set<uint32_t>>(rules.size())};
    const uint32_t holes = 1 + static_cast<uint32_t>(random() % 20);  // one chunk in so many is missing
    for (uint16_t g = 0; g < rules.size(); ++g) {
      std::vector<ChunkKey> stored;
      for (uint32_t k = 0; k < length; ++k) {
        if (rules[g].kind != GroupKind::kFull && random() % holes == 0) continue;
        stored.push_back(keys[k]);
        plain.has[g].insert(k);
      }
      if (!stored.empty()) REQUIRE(f.Keep(worker, stored, {}, GroupId{g}) == stored.size());
    }
    const uint64_t before = f.core->work();
    const LookupAnswered hit = f.Lookup(worker, keys, absl::Seconds(1));
    REQUIRE(hit.chunks == plain.Usable(length));
    hits += hit.chunks > 0 ? 1 : 0;
    // Asked for once, used once, and kept once.
    REQUIRE(f.core->work() - before <= 3 * (length + 16) * rules.size());
  }
  CHECK(hits > 10);
}

TEST_CASE("A search looks as far as its work goes, and no shorter") {
  const auto reach = [](const std::vector<ReuseRule>& rules, uint32_t keys, uint32_t work = 16384) {
    return UsablePosition::Reach(Hybrid(rules).groups, keys, work);
  };
  const ReuseRule full, state{GroupKind::kState}, window{GroupKind::kWindow, 16}, vast{GroupKind::kWindow, 4096};
  CHECK(reach({full}, 4096) == 4096);
  CHECK(reach({full, full, full}, 4096) == 4096);
  CHECK(reach({full, state, state, state, window, window}, 4096) == 4096);
  CHECK(reach({vast}, 4096) == 4096);
  CHECK(reach({full, full, full, full}, 4096) == 3072);
  CHECK(reach({full, full, full, full}, 3000) == 3000);
  CHECK(reach({full, vast}, 4096) == 3072);
  CHECK(reach(std::vector<ReuseRule>(64, full), 4096) == 192);
  CHECK(reach(std::vector<ReuseRule>(64, vast), 4096) == 64);
  CHECK(reach(std::vector<ReuseRule>(64, vast), 4096, 16) == 1);
  CHECK(reach({full}, 0) == 0);
  // What is found beyond it is no hit, and what is within it is.
  CoreFixture::Options options;
  options.core.event_work = 40;  // 30 of it
  options.slab_bytes = KiB(512);
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", Hybrid({full, full}));
  const std::vector<ChunkKey> keys = Prompt(1, 20);
  for (uint16_t g = 0; g < 2; ++g) {
    uint32_t stored = f.Keep(worker, {keys.begin(), keys.begin() + 10}, {}, GroupId{g});
    stored += f.Keep(worker, {keys.begin() + 10, keys.end()}, keys[9], GroupId{g});
    REQUIRE(stored == 20);
  }
  CHECK(f.Lookup(worker, keys).chunks == 15);
  CHECK(f.Lookup(worker, {keys.begin(), keys.begin() + 15}).chunks == 15);
}

TEST_CASE("A lease keeps what its position needs in each group and nothing else, and loads give those slots only") {
  CoreFixture f({.core = {}, .slab_bytes = KiB(64), .slabs = 1});  // 16 slots
  const SpaceSpec space = Hybrid({{}, {GroupKind::kWindow, 2}, {GroupKind::kState}});
  const SessionId worker = f.Worker("engine", space);
  const std::vector<ChunkKey> keys = Prompt(1, 4);
  std::map<std::pair<uint16_t, uint32_t>, uint32_t> slot;  // (group, position) -> slot
  for (uint16_t g = 0; g < 3; ++g) {
    const auto store = f.Store(worker, keys, {}, GroupId{g});
    REQUIRE(store.has_value());
    for (uint32_t k = 0; k < 4; ++k) slot[{g, k}] = store->slots[k].index;
    f.Finish(store->op);
  }
  const LookupAnswered hit = f.Lookup(worker, keys, absl::Seconds(10));
  REQUIRE(hit.chunks == 4);
  REQUIRE(hit.lease);
  // 12 slots are in use; 4 are free, 5 more can be had: windows 0 and 1, states 0 to 2.
  uint32_t stored = 0;
  for (uint64_t n = 0; n < 40; ++n) stored += f.Keep(worker, {KeyOf(5000 + n)}, {}, GroupId{2}) > 0 ? 1 : 0;
  CHECK(stored == 40);  // evicting each other
  CHECK(f.Lookup(worker, keys).chunks == 4);
  const auto loads = [&](uint16_t group, uint32_t first, uint32_t count) {
    const auto load = f.Load(worker, hit.lease, first, count, GroupId{group});
    if (!load.has_value()) {
      CHECK(f.ended->status.code() == absl::StatusCode::kInvalidArgument);
      return false;
    }
    for (uint32_t k = 0; k < count; ++k) CHECK(load->slots[k].index == slot.at({group, first + k}));
    f.Finish(load->op);
    return true;
  };
  CHECK(loads(0, 0, 4));
  CHECK(loads(0, 1, 2));
  CHECK(loads(1, 2, 2));
  CHECK(loads(1, 3, 1));
  CHECK(loads(2, 3, 1));
  CHECK_FALSE(loads(1, 1, 2));
  CHECK_FALSE(loads(2, 2, 1));
  CHECK_FALSE(loads(2, 3, 2));
  CHECK_FALSE(loads(3, 3, 1));
  f.Do(ReleaseAsked{worker, hit.lease});
  for (uint64_t n = 0; n < 40; ++n) f.Keep(worker, {KeyOf(6000 + n)}, {}, GroupId{2});
  CHECK(f.Lookup(worker, keys).chunks == 0);
}

TEST_CASE("A shard that is equal on several ranks is stored once and loaded by each") {
  CoreFixture f;
  SpaceSpec space = SpaceNamed("mla", {KiB(4), KiB(4)});  // pipeline stages
  space.groups[0].ranks_per_shard = 2;                    // tensor-parallel ranks of each
  const SessionId r0 = f.Worker("engine", space, 0), r1 = f.Worker("engine", space, 1), r2 = f.Worker("engine", space, 2),
                  r3 = f.Worker("engine", space, 3);
  const auto keys = KeysOf({1, 2});
  const auto first = f.Store(r1, keys);
  REQUIRE(first.has_value());
  CHECK_FALSE(f.Store(r0, keys).has_value());
  CHECK(f.ended->skipped == 2);
  f.Finish(first->op);
  CHECK(f.Lookup(r0, keys).chunks == 0);  // the other stage's shard is missing
  const auto second = f.Store(r3, keys);
  REQUIRE(second.has_value());
  f.Finish(second->op);
  const LookupAnswered hit = f.Lookup(r0, keys, absl::Seconds(1));
  REQUIRE(hit.chunks == 2);
  for (const auto& [rank, store] : {std::pair{r0, &first}, {r1, &first}, {r2, &second}, {r3, &second}}) {
    const auto load = f.Load(rank, hit.lease, 0, 2);
    REQUIRE(load.has_value());
    CHECK(load->slots == (*store)->slots);
    f.Finish(load->op);
  }
}

}  // namespace
}  // namespace kvist::core
