#include "daemon/core/eviction_policy.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

// Exact LRU over leaves, the obvious way: a stamp per chunk, and a search for the oldest leaf that nothing needs.
// Whatever uses a chunk uses its prefix.
class LruLeafModel {
 public:
  explicit LruLeafModel(size_t capacity) : capacity_(capacity) {}

  // Chunks of `path` that are there, from the first; they are used.
  uint32_t Lookup(const std::vector<uint64_t>& path) {
    uint32_t hit = 0;
    while (hit < path.size() && Sealed(path[hit])) ++hit;
    if (hit > 0) Touch(path[hit - 1]);
    return hit;
  }
  void Keep(uint64_t tip) { ++nodes_.at(tip).needed; }
  void LetGo(uint64_t tip) {
    if (--nodes_.at(tip).needed == 0) Touch(tip);
  }
  // Begins to store `path`; the new chunks, which fill until Seal.
  std::vector<uint64_t> Store(const std::vector<uint64_t>& path) {
    std::vector<uint64_t> fresh;
    uint64_t parent = 0;
    for (const uint64_t id : path) {
      if (!nodes_.contains(id)) {
        nodes_[id] = {parent, 0, 1, 0, true};
        if (parent != 0) ++nodes_[parent].children;
        if (nodes_.size() > capacity_ && !EvictOne()) {
          nodes_.erase(id);
          if (parent != 0) --nodes_[parent].children;
          break;
        }
        fresh.push_back(id);
      }
      parent = id;
    }
    if (parent != 0 && fresh.empty() && Sealed(parent)) Touch(parent);
    return fresh;
  }
  void Seal(const std::vector<uint64_t>& fresh) {
    for (const uint64_t id : fresh) {
      nodes_[id].filling = false;
      --nodes_[id].needed;
    }
    // When another store has already put a child under it, that one's seal is the use that counts.
    if (Unneeded(fresh.back())) Touch(fresh.back());
  }
  // Whether only the store itself hangs on what it has begun, so that all of it can go.
  bool CanFail(const std::vector<uint64_t>& fresh) const {
    for (const uint64_t id : fresh) {
      if (nodes_.at(id).children != (id == fresh.back() ? 0 : 1)) return false;
    }
    return true;
  }
  void Fail(const std::vector<uint64_t>& fresh) {
    const uint64_t parent = nodes_.at(fresh.front()).parent;
    for (const uint64_t id : fresh) nodes_.erase(id);
    if (parent == 0) return;
    --nodes_.at(parent).children;
    if (Sealed(parent)) Touch(parent);
  }
  size_t size() const { return nodes_.size(); }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Node {
    uint64_t parent = 0;
    uint32_t children = 0;
    uint32_t needed = 0;
    uint64_t stamp = 0;
    bool filling = false;
  };
  bool Sealed(uint64_t id) const { return nodes_.contains(id) && !nodes_.at(id).filling; }
  bool Unneeded(uint64_t id) const { return nodes_.at(id).children == 0 && nodes_.at(id).needed == 0; }
  void Touch(uint64_t id) {
    for (++clock_; id != 0; id = nodes_.at(id).parent) nodes_.at(id).stamp = clock_;
  }
  bool EvictOne() {
    uint64_t victim = 0;
    for (const auto& [id, node] : nodes_) {
      if (Unneeded(id) && (victim == 0 || node.stamp < nodes_.at(victim).stamp)) victim = id;
    }
    if (victim == 0) return false;
    if (const uint64_t parent = nodes_.at(victim).parent; parent != 0) --nodes_.at(parent).children;
    nodes_.erase(victim);
    ++evictions_;
    return true;
  }

  size_t capacity_;
  uint64_t clock_ = 0;
  uint64_t evictions_ = 0;
  std::map<uint64_t, Node> nodes_;
};

std::vector<ChunkKey> Keys(const std::vector<uint64_t>& path) {
  std::vector<ChunkKey> keys;
  for (const uint64_t id : path) keys.push_back(KeyOf(id));
  return keys;
}

TEST_CASE("Core evicts as an exact LRU over leaves when lookups, stores, loads and leases come in any order") {
  const uint64_t seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u);
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  CoreFixture::Options options;
  options.slabs = 2 + seed % 3;
  options.core.lease_share = 1;
  options.core.eviction = Eviction::kLru;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  LruLeafModel model(f.slots->capacity() / KiB(4));

  const auto random_path = [&] {
    std::vector<uint64_t> path(1 + random() % 7);
    uint64_t id = 1;
    for (uint64_t& at : path) at = id = id * 5 + random() % (random() % 2 == 0 ? 1 : 4) + 1;
    return path;
  };
  struct Kept {
    LeaseId lease;
    uint64_t tip;
    uint32_t chunks;
  };
  struct Copying {
    OpId op;
    std::vector<uint64_t> fresh;  // a store's; else empty
    uint64_t tip = 0;             // a load's
  };
  std::vector<Kept> leases;
  std::vector<Copying> copies;
  for (int step = 0; step < 4000; ++step) {
    // Room shrinks while leases and copies pile up, and grows when they end.
    const bool pile_up = step / 250 % 2 == 1;
    const size_t kind = random() % 10;
    if (kind < 3) {
      const std::vector<uint64_t> path = random_path();
      const LookupAnswered answer = f.Lookup(worker, Keys(path));
      REQUIRE(answer.chunks == model.Lookup(path));
    } else if (kind < 5) {
      const std::vector<uint64_t> path = random_path();
      const LookupAnswered answer = f.Lookup(worker, Keys(path), absl::Hours(1));
      REQUIRE(answer.chunks == model.Lookup(path));
      if (!answer.lease) continue;
      leases.push_back({answer.lease, path[answer.chunks - 1], answer.chunks});
      model.Keep(leases.back().tip);
    } else if (kind < 7) {
      const std::vector<uint64_t> path = random_path();
      const std::vector<uint64_t> fresh = model.Store(path);
      const std::optional<CopyStarted> copy = f.Store(worker, Keys(path));
      REQUIRE((copy.has_value() ? copy->slots.size() : 0) == fresh.size());
      if (copy.has_value()) copies.push_back({copy->op, fresh});
    } else if (kind == 7 && !leases.empty()) {
      const Kept& lease = leases[random() % leases.size()];
      const std::optional<CopyStarted> copy = f.Load(worker, lease.lease, lease.chunks - 1, 1);
      REQUIRE(copy.has_value());
      model.Keep(lease.tip);
      copies.push_back({copy->op, {}, lease.tip});
    } else if (kind == 8) {
      while (leases.size() > (pile_up ? 8 : 1)) {
        const size_t at = random() % leases.size();
        f.Do(ReleaseAsked{worker, leases[at].lease});
        model.LetGo(leases[at].tip);
        leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    while (copies.size() > (pile_up ? 4 : 0)) {
      const size_t at = random() % copies.size();
      const std::vector<uint64_t>& fresh = copies[at].fresh;
      const bool fails = !fresh.empty() && model.CanFail(fresh) && random() % 8 == 0;
      f.Finish(copies[at].op, fails ? absl::DataLossError("gone") : absl::OkStatus());
      if (fails) {
        model.Fail(fresh);
      } else {
        fresh.empty() ? model.LetGo(copies[at].tip) : model.Seal(fresh);
      }
      copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const CoreStatus status = f.core->status();
    REQUIRE(status.chunks == model.size());
    REQUIRE(status.evictions == model.evictions());
  }
  REQUIRE(model.evictions() > 200);
}

TEST_CASE("LruLeaves gives an exposed chunk the place of its own last use") {
  pool::HeapSections sections;
  ChunkTable chunks(KeyHash{{1, 2, 3, 4}}, &sections);
  const auto policy = MakeLruLeaves(&chunks);
  const auto add = [&](uint64_t n, ChunkIndex parent) {
    const ChunkIndex i = chunks.Add(SpaceId{0}, GroupId{0}, KeyOf(n), parent, 0);
    chunks[i].state = ChunkState::kSealed;
    return i;
  };
  const auto use = [&](ChunkIndex i) { policy->Used({&i, 1}); };
  const auto evict = [&](ChunkIndex i) {
    chunks[i].state = ChunkState::kGhost;
    policy->Exposed(chunks.Remove(i));
  };
  const ChunkIndex parent = add(1, kNoChunk), child = add(2, parent), other = add(3, kNoChunk), third = add(4, kNoChunk);
  use(child);
  use(other);
  use(parent);  // by a shorter prompt
  use(third);
  REQUIRE(policy->NextVictim() == child);
  evict(child);
  REQUIRE(policy->NextVictim() == other);
  REQUIRE(policy->NextVictim() == parent);
  REQUIRE(policy->NextVictim() == third);
  REQUIRE(policy->NextVictim() == kNoChunk);
  use(third);
  policy->Withdrawn(third);
  policy->Withdrawn(third);
  REQUIRE_FALSE(policy->Knows(third));
  REQUIRE(policy->NextVictim() == kNoChunk);
}

}  // namespace
}  // namespace kvist::core
