#include "cuda/shared_memory_engine.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "storage/base/clock.h"
#include "tests/unit/cuda/kv_world.h"
#include "tests/unit/cuda/round_trip.h"

namespace kvist::cuda {
namespace {

void CheckRoundTrip(const NamedLayout& named, Seal seal, uint32_t threads, uint64_t seed) {
  INFO(threads << " threads");
  CheckRoundTrip(named, seal, seed, [&](CopyEngine::Done done) {
    return MakeSharedMemoryEngine({.threads = threads, .cpus = {}}, std::move(done));
  });
}

TEST_CASE("SharedMemoryEngine copies every known layout like plain loops do") {
  for (const NamedLayout& named : KnownLayouts()) {
    for (const Seal seal : {Seal::kShrink, Seal::kNone, Seal::kMixed, Seal::kProcess}) CheckRoundTrip(named, seal, 2, 17);
  }
}

TEST_CASE("SharedMemoryEngine copies random layouts like plain loops do") {
  const uint64_t seed = std::random_device()();
  for (uint64_t round = 0; round < 60; ++round) {
    Rng rng(seed + round);
    const NamedLayout named = RandomLayout(rng);
    CheckRoundTrip(named, static_cast<Seal>(rng() % 4), 1 + static_cast<uint32_t>(rng() % 4), seed + round);
  }
}

TEST_CASE("SharedMemoryEngine ends empty copies, too") {
  KvWorld world(KnownLayouts()[0], Seal::kNone, 1, 1);
  Rng rng(1);
  const KvWorld::Image before = world.Snapshot();
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({}, ends.Listener());
  engine->Submit(world.MakeCopy({1, 1}, Direction::kLoad, {}, rng));
  Copy no_layers = world.MakeCopy({2, 1}, Direction::kStore, {0}, rng);
  no_layers.layer_count = 0;
  engine->Submit(std::move(no_layers));
  CHECK(ends.Wait({1, 1}) == absl::OkStatus());
  CHECK(ends.Wait({2, 1}) == absl::OkStatus());
  CHECK(world.Snapshot() == before);
}

TEST_CASE("SharedMemoryEngine does loads before stores, and each in order of coming") {
  const NamedLayout named = KnownLayouts()[12];
  REQUIRE(named.name == "layers of several units");
  KvWorld world(named, Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
  Copy first = world.MakeCopy({1, 1}, Direction::kStore, {0}, rng);
  const auto gate = std::make_shared<Gate>(1);
  first.progress = gate;
  engine->Submit(std::move(first));
  gate->WaitUntilReached();  // the only thread is in the middle of copy 1
  engine->Submit(world.MakeCopy({2, 1}, Direction::kStore, {1}, rng));
  engine->Submit(world.MakeCopy({3, 1}, Direction::kLoad, {2}, rng));
  engine->Submit(world.MakeCopy({4, 1}, Direction::kLoad, {3}, rng));
  gate->Open();
  ends.WaitForCount(4);
  CHECK(ends.order() == std::vector<OpId>{{3, 1}, {4, 1}, {1, 1}, {2, 1}});
}

TEST_CASE("SharedMemoryEngine says when a copy's turn came, and nothing of one that was cancelled before") {
  const NamedLayout named = KnownLayouts()[12];
  KvWorld world(named, Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
  Copy first = world.MakeCopy({1, 1}, Direction::kStore, {0}, rng);
  const auto gate = std::make_shared<Gate>(1);
  first.progress = gate;
  const int64_t start = MonotonicNanos();
  engine->Submit(std::move(first));
  gate->WaitUntilReached();  // the only thread is in the middle of copy 1
  engine->Submit(world.MakeCopy({2, 1}, Direction::kStore, {1}, rng));
  engine->Submit(world.MakeCopy({3, 1}, Direction::kStore, {2}, rng));
  engine->Cancel({3, 1});
  const int64_t opened = MonotonicNanos();
  gate->Open();
  const int64_t first_began = ends.WaitForEnd({1, 1}).began_nanos;
  CHECK(first_began >= start);
  CHECK(first_began <= opened);
  const int64_t second_began = ends.WaitForEnd({2, 1}).began_nanos;
  CHECK(second_began >= opened);
  CHECK(second_began <= MonotonicNanos());
  const CopyEnd cancelled = ends.WaitForEnd({3, 1});
  CHECK(absl::IsCancelled(cancelled.status));
  CHECK(cancelled.began_nanos == 0);
}

TEST_CASE("SharedMemoryEngine lets go of the memory before it says that a copy has ended") {
  auto world = std::make_unique<KvWorld>(KnownLayouts()[0], Seal::kShrink, 1, 1);
  Rng rng(1);
  Copy copy = world->MakeCopy({1, 1}, Direction::kLoad, {0}, rng);
  const std::weak_ptr<const KvMemory> memory = world->memory();
  std::atomic<long> owners{-1};
  Ends ends;
  const auto listener = ends.Listener();
  const auto engine = MakeSharedMemoryEngine({}, [&](OpId op, CopyEnd end) {
    owners = memory.use_count();
    listener(op, std::move(end));
  });
  engine->Submit(std::move(copy));
  REQUIRE(ends.Wait({1, 1}) == absl::OkStatus());
  CHECK(owners == 1);  // the world's
}

TEST_CASE("SharedMemoryEngine carries many copies at once") {
  Rng rng(5);
  const NamedLayout named = KnownLayouts()[13];
  REQUIRE(named.name == "many small layers");
  // Copies that may touch the same bytes have memories and slots of their own.
  constexpr uint32_t kWorlds = 6, kCopies = 8;
  std::vector<std::unique_ptr<KvWorld>> worlds;
  std::vector<KvWorld::Image> expected;
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 4, .cpus = {}}, ends.Listener());
  for (uint32_t w = 0; w < kWorlds; ++w) {
    worlds.push_back(std::make_unique<KvWorld>(named, static_cast<Seal>(w % 4), kCopies, w));
    expected.push_back(worlds.back()->Snapshot());
  }
  for (uint32_t c = 0; c < kCopies; ++c) {
    for (uint32_t w = 0; w < kWorlds; ++w) {
      // Copy c of a world has slot c and the pages [4 c, 4 c + 4) for itself.
      Copy copy =
          worlds[w]->MakeCopy({w * kCopies + c, 1}, (c + w) % 2 == 0 ? Direction::kLoad : Direction::kStore, {c}, rng);
      for (uint32_t p = 0; p < copy.page_table.size(); ++p) copy.page_table[p] = {4 * c + (p + w) % 4};
      worlds[w]->Apply(copy, &expected[w]);
      engine->Submit(std::move(copy));
    }
  }
  for (uint32_t op = 0; op < kWorlds * kCopies; ++op) REQUIRE(ends.Wait({op, 1}) == absl::OkStatus());
  for (uint32_t w = 0; w < kWorlds; ++w) CHECK(worlds[w]->Snapshot() == expected[w]);
  CHECK(ends.order().size() == kWorlds * kCopies);
}

TEST_CASE("SharedMemoryEngineOptions refuses impossible values") {
  const auto refused = [](uint32_t threads, std::vector<int> cpus) {
    return SharedMemoryEngineOptions{threads, std::move(cpus)}.Validate().code() == absl::StatusCode::kInvalidArgument;
  };
  CHECK(SharedMemoryEngineOptions{}.Validate() == absl::OkStatus());
  CHECK(refused(0, {}));
  CHECK(refused(257, {}));
  CHECK(refused(1, {-1}));
  CHECK(refused(1, {1 << 20}));
}

}  // namespace
}  // namespace kvist::cuda
