// Readers beside writers: what doesn't change is always seen, whatever changes around it. For ThreadSanitizer, too.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/controller/directory.h"
#include "daemon/controller/directory_search.h"
#include "daemon/controller/holder_index.h"
#include "tests/support/campaign.h"
#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

TEST_CASE("HolderIndex shows readers every holder that stays, while its neighbours come, go and move") {
  // All in one shard, side by side, so that each change moves cells that somebody is reading; the fewer, the more often the same one.
  const auto count = GENERATE(uint64_t{8}, uint64_t{200});
  const int rounds = test::Campaign("KVIST_DIRECTORY_CHANGES", 100'000, 2'000'000);
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  HolderIndex index;
  std::vector<uint64_t> fingerprints;
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < count; ++i) fingerprints.push_back(random() >> HolderIndex::kShardBits);
  // Whose chunk it is shows in the telling: what stays has the chunk's own number, each writer six for each chunk, more than a cell holds.
  const auto stays = [](uint64_t at) { return at % 2 == 0; };
  for (uint64_t at = 0; at < count; ++at) {
    if (stays(at)) index.Set(fingerprints[at], static_cast<TellingId>(at), {5});
  }
  std::atomic<int> writing = 2;
  std::atomic<uint64_t> missed = 0, wrong = 0, reads = 0;
  const auto write = [&](uint64_t number) {
    while (reads == 0) std::this_thread::yield();
    std::mt19937_64 its(seed + number);
    for (int i = 0; i < rounds; ++i) {
      const uint64_t at = its() % count;
      const auto telling = static_cast<TellingId>(2000 * number + 6 * at + its() % 6);
      const bool add = (i / 100 % 2 == 0) == (its() % 8 < 7);
      index.Set(fingerprints[at], telling, {static_cast<uint8_t>(add ? 1 + its() % TierSet::kAll : 0)});
      if (number == 1 && i % 3000 == 0) {
        TellingSet lost;
        lost.set(telling);
        index.Sweep(0, lost);
      }
    }
    --writing;
  };
  const auto read = [&](uint64_t number) {
    std::mt19937_64 its(seed + 10 + number);
    Readers::Reader reader(index.readers());
    while (writing > 0) {
      const Reading reading(&reader);
      for (int i = 0; i < 100; ++i) {
        const uint64_t at = its() % count;
        bool stayed = false;
        index.Visit(fingerprints[at], [&](TellingId telling, TierSet tiers) {
          const bool own = telling == at;
          stayed = stayed || own;
          if (own ? tiers.bits != 5 || !stays(at) : telling < 2000 || telling % 2000 / 6 != at) ++wrong;
        });
        if (stayed != stays(at)) ++missed;
        ++reads;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) threads.emplace_back(read, i);
  for (uint32_t i = 1; i <= 2; ++i) threads.emplace_back(write, i);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(reads > 0);
  REQUIRE(missed == 0);
  REQUIRE(wrong == 0);
  const uint64_t full = index.memory_bytes();
  TellingSet lost;
  lost.set();
  index.Sweep(0, lost);
  index.Collect();
  REQUIRE(index.memory_bytes() < full);  // nobody reads any more: what was replaced is gone, too
}

// What a signal's handler looks at, in the middle of whatever its thread was doing.
struct Interrupted {
  const HolderIndex* index = nullptr;
  std::vector<uint64_t> fingerprints = {};
  uint64_t changing = 0;  // whose holders are being changed
  std::vector<std::set<TellingId>> held = {};
  std::atomic<uint64_t> looked = 0, missed = 0, wrong = 0;
};
Interrupted* interrupted = nullptr;

void LookMeanwhile(int) {
  Interrupted& it = *interrupted;
  for (uint64_t at = 0; at < it.fingerprints.size(); ++at) {
    uint64_t own = 0, stay = 0;  // bits of tellings that are seen
    it.index->Visit(it.fingerprints[at], [&](TellingId telling, TierSet) {
      if (telling / 10 != at) ++it.wrong;
      (telling % 10 == 0 ? stay : own) |= uint64_t{1} << telling % 10;
    });
    if (stay == 0) ++it.missed;
    if (at == it.changing) continue;
    for (uint64_t k = 1; k < 10; ++k) {
      if ((own >> k & 1) != it.held[at].count(static_cast<TellingId>(10 * at + k))) ++it.missed;
    }
  }
  ++it.looked;
}

TEST_CASE("HolderIndex shows everything while its writer is stopped anywhere in a change") {
  const int rounds = test::Campaign("KVIST_DIRECTORY_CHANGES", 100'000, 2'000'000);
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  HolderIndex index;
  Interrupted it;
  it.index = &index;
  it.held.resize(12);
  for (uint64_t at = 0; at < it.held.size(); ++at) {
    it.fingerprints.push_back(random() >> HolderIndex::kShardBits);
    index.Set(it.fingerprints[at], static_cast<TellingId>(10 * at), {1});
  }
  interrupted = &it;
  struct sigaction action = {}, before = {};
  action.sa_handler = LookMeanwhile;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  std::atomic<bool> over = false;
  const pthread_t writer = ::pthread_self();
  std::thread stopping([&] {
    for (uint64_t seen = 0; !over;) {
      ::pthread_kill(writer, SIGUSR1);
      while (it.looked == seen && !over) std::this_thread::yield();
      seen = it.looked;
    }
  });
  for (int i = 0; i < rounds || it.looked < 100; ++i) {
    const uint64_t at = random() % it.fingerprints.size();
    const auto telling = static_cast<TellingId>(10 * at + 1 + random() % 9);
    const bool add = (i / 60 % 2 == 0) == (random() % 8 < 7);
    it.changing = at;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    index.Set(it.fingerprints[at], telling, {static_cast<uint8_t>(add ? 1 : 0)});
    add ? static_cast<void>(it.held[at].insert(telling)) : static_cast<void>(it.held[at].erase(telling));
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  over = true;
  stopping.join();
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
  REQUIRE(it.missed == 0);
  REQUIRE(it.wrong == 0);
}

TEST_CASE("Directory shows each node by one telling, whole, while snapshots replace each other") {
  constexpr uint32_t kLengths[] = {5, 9};
  const int rounds = test::Campaign("KVIST_DIRECTORY_SNAPSHOTS", 150, 5000);
  std::vector<ChunkKey> keys;
  for (uint64_t n = 0; n < kLengths[1]; ++n) keys.push_back(KeyOf(n));
  Directory directory;
  const auto snapshot = [&](NodeId node, uint64_t epoch) {
    // Which one it is shows in its tiers, too.
    const uint32_t which = epoch % 2;
    bool taken = directory.Hear(node, SnapshotBegin{epoch, 0}).ok() &&
                 directory.Hear(node, SpaceOf(epoch, SpaceId{0}, 1, {ReuseRule{}})).ok();
    for (uint32_t k = 0; k < kLengths[which]; ++k) {
      taken =
          taken &&
          directory
              .Hear(node, SnapshotSlice{epoch, k, {{SpaceId{0}, GroupId{0}, keys[k], {static_cast<uint8_t>(1 + which)}}}})
              .ok();
    }
    return taken && directory.Hear(node, SnapshotEnd{epoch, kLengths[which]}).ok();
  };
  std::vector<NodeId> nodes;
  for (int n = 0; n < 3; ++n) {
    nodes.push_back(*directory.Meet(std::to_string(n)));
    REQUIRE(snapshot(nodes.back(), 0));
  }
  std::atomic<int> writing = 2;
  std::atomic<uint64_t> refused = 0, wrong = 0, lookups = 0;
  const auto tell = [&](uint32_t node) {
    while (lookups == 0) std::this_thread::yield();
    for (int i = 1; i <= rounds; ++i) refused += snapshot(nodes[node], static_cast<uint64_t>(i)) ? 0 : 1;
    --writing;
  };
  const auto sweep = [&] {
    while (writing > 0) directory.Tick(absl::InfinitePast());
  };
  const auto look = [&] {
    DirectorySearch search(&directory);
    while (writing > 0) {
      const auto found = search.Find(DigestOf(1), keys);
      std::set<NodeId> seen;
      for (const Holding& holding : *found) {
        seen.insert(holding.node);
        const bool one = holding.chunks == kLengths[0] && holding.in_tiers[1] == kLengths[0];
        const bool other = holding.chunks == kLengths[1] && holding.in_tiers[2] == kLengths[1];
        if (holding.node == nodes[2] ? !one || holding.stale : !one && !other) ++wrong;
      }
      if (seen.size() != found->size()) ++wrong;
      if (seen.size() != nodes.size()) ++wrong;
      ++lookups;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) threads.emplace_back(tell, i);
  for (int i = 0; i < 2; ++i) threads.emplace_back(look);
  threads.emplace_back(sweep);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(refused == 0);
  REQUIRE(wrong == 0);
  REQUIRE(lookups > 0);
}

}  // namespace
}  // namespace kvist::controller
