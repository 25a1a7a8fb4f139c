// What every policy promises (eviction_policy.h), and what LHD does beyond it.
#include "daemon/core/eviction_policy.h"

#include <catch2/catch.hpp>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "daemon/core/evicted_chunks.h"
#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

// A policy over a tree of chunks, told what the core would tell it.
class Tree {
 public:
  explicit Tree(Eviction which) : policy(MakeEvictionPolicy(which, &chunks)) {}

  // A sealed chunk, not offered yet.
  ChunkIndex Add(uint64_t name, ChunkIndex parent = kNoChunk) {
    const ChunkIndex i = chunks.Add(SpaceId{0}, GroupId{0}, KeyOf(name), parent, 0);
    if (parent != kNoChunk) policy->Withdrawn(parent);
    chunks[i].state = ChunkState::kSealed;
    policy->Sealed(i);
    return i;
  }
  ChunkIndex Offered(uint64_t name, ChunkIndex parent = kNoChunk) {
    const ChunkIndex i = Add(name, parent);
    policy->Returned(i);
    return i;
  }
  // A chain of new chunks; its deepest is offered.
  std::vector<ChunkIndex> Chain(uint64_t name, size_t length) {
    std::vector<ChunkIndex> chain;
    Lengthen(&chain, name, length);
    return chain;
  }
  void Lengthen(std::vector<ChunkIndex>* chain, uint64_t name, size_t length) {
    while (chain->size() < length)
      chain->push_back(Add(name * 1000 + chain->size(), chain->empty() ? kNoChunk : chain->back()));
    policy->Returned(chain->back());
  }
  void Use(const std::vector<ChunkIndex>& path) { policy->Used(path); }
  // What the core does with a victim, or with a chunk that is cleared.
  void Remove(ChunkIndex i) {
    policy->Withdrawn(i);
    policy->Dropped(i);
    chunks[i].state = ChunkState::kGhost;
    const ChunkIndex parent = chunks.Remove(i);
    if (parent != kNoChunk && !chunks[parent].needed()) policy->Exposed(parent);
  }
  ChunkIndex Evict() {
    const ChunkIndex i = policy->NextVictim();
    if (i != kNoChunk) {
      policy->Evicted(i);
      Remove(i);
    }
    return i;
  }
  void Hint(ChunkIndex i, core::Hint hint) {
    chunks[i].session_ended = hint.session_ended;
    chunks[i].expected_reuse = hint.expected_reuse;
    chunks[i].stop_reason = hint.stop_reason;
    policy->Hinted(i);
  }

  pool::HeapSections sections;
  ChunkTable chunks{KeyHash{{1, 2, 3, 4}}, &sections};
  std::unique_ptr<EvictionPolicy> policy;
};

TEST_CASE("A policy knows what is offered, and nothing else") {
  Tree t(GENERATE(Eviction::kLru, Eviction::kLhd));
  const ChunkIndex i = t.Add(1);
  CHECK_FALSE(t.policy->Knows(i));
  CHECK(t.policy->NextVictim() == kNoChunk);
  t.policy->Returned(i);
  CHECK(t.policy->Knows(i));
  t.policy->Returned(i);
  t.policy->Exposed(i);
  CHECK(t.policy->Knows(i));
  t.policy->Withdrawn(i);
  t.policy->Withdrawn(i);
  CHECK_FALSE(t.policy->Knows(i));
  CHECK(t.policy->NextVictim() == kNoChunk);
  t.Use({i});
  CHECK(t.policy->Knows(i));
  CHECK(t.policy->NextVictim() == i);
  CHECK_FALSE(t.policy->Knows(i));
  CHECK(t.policy->NextVictim() == kNoChunk);
}

TEST_CASE("A policy gives leaves only, a chain from its end, and a chunk that is exposed after its children") {
  Tree t(GENERATE(Eviction::kLru, Eviction::kLhd));
  const std::vector<ChunkIndex> chain = t.Chain(1, 3);
  t.Use({chain[0], chain[1]});  // by a shorter prompt
  CHECK(t.Evict() == chain[2]);
  CHECK(t.Evict() == chain[1]);
  CHECK(t.Evict() == chain[0]);
  CHECK(t.Evict() == kNoChunk);
}

TEST_CASE("A policy gives what is leased or held only when that has ended") {
  Tree t(GENERATE(Eviction::kLru, Eviction::kLhd));
  const ChunkIndex kept = t.Offered(1), held = t.Offered(2), other = t.Offered(3);
  t.chunks[kept].keeps = 1;
  t.policy->Withdrawn(kept);
  t.chunks[held].holds = 1;
  t.policy->Withdrawn(held);
  t.Use({held});  // somebody else hit it meanwhile
  CHECK(t.Evict() == other);
  CHECK(t.Evict() == kNoChunk);
  t.chunks[kept].keeps = t.chunks[held].holds = 0;
  t.policy->Returned(kept);
  t.policy->Returned(held);
  const std::set<ChunkIndex> both = {t.Evict(), t.Evict()};
  CHECK(both == std::set<ChunkIndex>{kept, held});
}

TEST_CASE("A policy gives cold chunks first, and no longer when the hint is taken back by a use") {
  Tree t(GENERATE(Eviction::kLru, Eviction::kLhd));
  t.Offered(1);
  const ChunkIndex ended = t.Offered(2), never = t.Offered(3), soon = t.Offered(4), hit = t.Offered(5);
  t.Offered(6);
  t.Hint(ended, {.session_ended = true});
  t.Hint(never, {.expected_reuse = ExpectedReuse::kNever});
  t.Hint(soon, {.session_ended = true, .expected_reuse = ExpectedReuse::kSoon});
  t.Hint(hit, {.session_ended = true});
  t.chunks[hit].ForgetHint();
  t.Use({hit});
  const std::set<ChunkIndex> cold = {t.Evict(), t.Evict()};
  CHECK(cold == std::set<ChunkIndex>{ended, never});
  const ChunkIndex next = t.Evict();
  CHECK(next != soon);
  CHECK(next != hit);
}

// Any calls that the core may make, against the set of what is offered.
TEST_CASE("A policy offers exactly what it was told to, whatever happens") {
  const auto which = GENERATE(Eviction::kLru, Eviction::kLhd);
  const auto seed = GENERATE(range(1u, 9u));
  CAPTURE(seed);
  Tree t(which);
  std::mt19937 random(seed);
  std::map<uint64_t, ChunkIndex> by_name;  // sealed
  uint32_t evicted = 0;
  const auto check = [&] {
    for (const auto& [name, i] : by_name) REQUIRE(t.policy->Knows(i) == !t.chunks[i].needed());
  };
  // Chunk n hangs on n / 3. A name may come again after it was evicted.
  const auto add = [&](uint64_t name) {
    const auto parent = by_name.find(name / 3);
    if (by_name.contains(name) || (name >= 3 && parent == by_name.end())) return;
    by_name[name] = t.Offered(name, name < 3 ? kNoChunk : parent->second);
  };
  const auto removed = [&](ChunkIndex i) {
    for (auto at = by_name.begin(); at != by_name.end(); ++at) {
      if (at->second == i) return static_cast<void>(by_name.erase(at));
    }
    FAIL("not a chunk that was there");
  };
  for (uint32_t step = 0; step < 6000; ++step) {
    if (by_name.empty()) add(1);
    auto at = by_name.lower_bound(random() % 400);
    if (at == by_name.end()) at = by_name.begin();
    Chunk& chunk = t.chunks[at->second];
    switch (random() % 10) {
      case 0:
      case 1:
      case 2: add(1 + random() % 400); break;
      case 3:
      case 4: {
        std::vector<ChunkIndex> path;
        for (uint64_t name = at->first; name > 0; name /= 3) path.insert(path.begin(), by_name.at(name));
        for (const ChunkIndex i : path) t.chunks[i].ForgetHint();
        t.Use(path);
        if (t.chunks[path.back()].needed()) t.policy->Withdrawn(path.back());
        break;
      }
      case 5:
        if (random() % 8 != 0) break;
        ++chunk.keeps;
        t.policy->Withdrawn(at->second);
        break;
      case 6:
        if (chunk.keeps > 0 && --chunk.keeps == 0) {
          t.policy->Returned(at->second);
          if (chunk.needed()) t.policy->Withdrawn(at->second);
        }
        break;
      case 7:
        t.Hint(at->second, {.session_ended = random() % 4 == 0, .stop_reason = static_cast<StopReason>(random() % 5)});
        break;
      case 8:  // cleared
        if (!chunk.needed()) {
          const ChunkIndex i = at->second;
          removed(i);
          t.Remove(i);
        }
        break;
      case 9: {
        const ChunkIndex i = t.policy->NextVictim();
        if (i == kNoChunk) break;
        REQUIRE_FALSE(t.chunks[i].needed());
        if (random() % 4 == 0) {  // it isn't evicted after all
          t.policy->Exposed(i);
          break;
        }
        t.policy->Evicted(i);
        removed(i);
        t.Remove(i);
        ++evicted;
        break;
      }
    }
    if (step % 16 == 0) check();
  }
  while (true) {
    for (const auto& [name, i] : by_name) {
      if (t.chunks[i].keeps > 0) {
        t.chunks[i].keeps = 0;
        if (!t.chunks[i].needed()) t.policy->Returned(i);
      }
    }
    const ChunkIndex i = t.policy->NextVictim();
    if (i == kNoChunk) break;
    t.policy->Evicted(i);
    removed(i);
    t.Remove(i);
  }
  CHECK(by_name.empty());
  CHECK(evicted > 300);
}

// ---- LHD ----------------------------------------------------------------------------------------------------------------------

// Room for 400 chunks; conversations of which those that came back once come back soon, while most never do.
double SecondTurnsFound(Eviction which) {
  Tree t(which);
  std::mt19937 random(11);
  std::map<uint64_t, std::vector<ChunkIndex>> chains;  // by the conversation's number
  std::map<ChunkIndex, uint64_t> whose;
  size_t there = 0, asked = 0, found = 0;
  const auto make_room = [&](size_t chunks) {
    while (there + chunks > 400) {
      const ChunkIndex i = t.Evict();
      REQUIRE(i != kNoChunk);
      chains[whose[i]].pop_back();
      --there;
    }
  };
  std::multimap<uint32_t, uint64_t> due;  // conversations that will come back
  for (uint32_t now = 0; now < 4000; ++now) {
    make_room(10);
    chains[now] = t.Chain(now, 10);
    for (const ChunkIndex i : chains[now]) whose[i] = now;
    there += 10;
    if (now % 8 == 0) {
      t.Use(chains[now]);  // at once: one that talks
      due.emplace(now + 60 + random() % 10, now);
    }
    for (auto next = due.begin(); next != due.end() && next->first <= now; next = due.erase(next)) {
      std::vector<ChunkIndex>& chain = chains[next->second];
      asked += 10;
      found += chain.size();
      if (!chain.empty()) t.Use(chain);
      const size_t lacks = 10 - chain.size();
      if (lacks == 0) continue;
      if (!chain.empty()) t.policy->Withdrawn(chain.back());  // as under a lease
      const ChunkIndex last = chain.empty() ? kNoChunk : chain.back();
      if (last != kNoChunk) ++t.chunks[last].keeps;
      make_room(lacks);
      if (last != kNoChunk) --t.chunks[last].keeps;
      t.Lengthen(&chain, next->second, 10);
      for (const ChunkIndex i : chain) whose[i] = next->second;
      there += lacks;
    }
  }
  return static_cast<double>(found) / static_cast<double>(asked);
}

TEST_CASE("LhdLeaves learns which chunks come back and keeps them") {
  const double lru = SecondTurnsFound(Eviction::kLru), lhd = SecondTurnsFound(Eviction::kLhd);
  CAPTURE(lru, lhd);
  CHECK(lru < 0.1);  // they come back after 600 chunks, and there is room for 400
  CHECK(lhd > 0.8);
}

TEST_CASE("LhdLeaves does the same again") { CHECK(SecondTurnsFound(Eviction::kLhd) == SecondTurnsFound(Eviction::kLhd)); }

TEST_CASE("LhdLeaves remembers four evicted chunks for each that is there, in 8 bytes each") {
  Tree t(Eviction::kLhd);
  constexpr uint64_t kThere = 2000;
  for (uint64_t n = 0; n < kThere; ++n) t.Offered(n);
  const uint64_t before = t.policy->memory_bytes();
  for (uint64_t n = kThere; n < 40 * kThere; ++n) {
    REQUIRE(t.Evict() != kNoChunk);
    t.Offered(n);
  }
  const uint64_t grown = t.policy->memory_bytes() - before;
  constexpr uint64_t kSegment = 16 << 10;  // the first was there before
  CHECK(grown + kSegment >= 4 * kThere * 8 * 9 / 10);
  CHECK(grown <= 4 * kThere * 8 + 4 * kSegment);  // and the classes that it met
  // With fewer chunks there it remembers fewer.
  for (uint64_t n = 0; n < kThere * 9 / 10; ++n) REQUIRE(t.Evict() != kNoChunk);
  CHECK(t.policy->memory_bytes() - before < grown / 2);
}

TEST_CASE("LhdLeaves charges what it does beside its chunks, a little at a time") {
  Tree t(Eviction::kLhd);
  uint64_t most = 0;
  for (uint64_t n = 0; n < 20000; ++n) {
    if (n >= 500) REQUIRE(t.Evict() != kNoChunk);
    const uint64_t before = t.chunks.work();
    t.Hint(t.Offered(n), {.stop_reason = static_cast<StopReason>(n % 5)});
    most = std::max(most, t.chunks.work() - before);
  }
  CHECK(most > 2);
  CHECK(most < 200);
}

// ---- EvictedChunks ------------------------------------------------------------------------------------------------------------

TEST_CASE("EvictedChunks takes back each word once, while it grows and shrinks") {
  EvictedChunks evicted;
  std::mt19937 random(3);
  std::map<uint32_t, uint32_t> model;  // hash -> word
  std::map<uint32_t, uint32_t> hash_of;
  const auto forget = [&](uint32_t word) {
    REQUIRE(hash_of.contains(word));
    REQUIRE(model.erase(hash_of[word]) == 1);
  };
  uint32_t taken = 0;
  for (uint32_t word = 1; word < 30000; ++word) {
    const uint64_t entries = word % 10000 < 6000 ? 8000 : 800;
    evicted.ResizeTowards(entries, forget);
    evicted.ResizeTowards(entries, forget);
    const auto hash = static_cast<uint32_t>(random());
    if (model.contains(hash)) continue;
    hash_of[word] = hash;
    model[hash] = word;
    if (const uint32_t gone = evicted.Put(hash, word); gone != 0) forget(gone);
    if (word % 3 == 0) {
      const auto [known, its_word] = *model.lower_bound(model.rbegin()->first / 2);
      REQUIRE(evicted.Take(known) == its_word);
      REQUIRE(evicted.Take(known) == 0);
      model.erase(known);
      ++taken;
    }
    REQUIRE(evicted.capacity() <= 8000);
    REQUIRE(model.size() <= evicted.capacity());
    REQUIRE(evicted.memory_bytes() <= evicted.capacity() * 8 + (16 << 10));
  }
  for (const auto& [hash, word] : model) REQUIRE(evicted.Take(hash) == word);
  CHECK(taken > 5000);
}

}  // namespace
}  // namespace kvist::core
