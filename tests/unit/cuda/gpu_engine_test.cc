#include "cuda/gpu_engine.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cuda/bus_claims.h"
#include "cuda/kernels/kernels.h"
#include "cuda/slot_arrival.h"
#include "cuda/slot_checksums.h"
#include "storage/base/clock.h"
#include "tests/unit/cuda/gpu_under_test.h"
#include "tests/unit/cuda/kv_world.h"
#include "tests/unit/cuda/round_trip.h"

namespace kvist::cuda {
namespace {

// A GPU whose driver behaves by a plan.
struct Planned {
  explicit Planned(FakeCudaPlan plan) {
    FakeDriver::Get().Plan(plan);
    gpu = FakeDriver::Get().OpenGpu();
  }
  ~Planned() {
    gpu.reset();
    FakeDriver::Get().Plan({});
  }
  std::unique_ptr<CopyEngine> Make(CopyEngine::Done done, GpuEngineOptions options = {}) {
    options.slots_pinned = [] { return true; };
    return MakeGpuEngine(gpu.get(), std::move(options), std::move(done));
  }
  std::unique_ptr<Gpu> gpu;
};

NamedLayout Named(const char* name) {
  for (const NamedLayout& named : KnownLayouts()) {
    if (named.name == name) return named;
  }
  FAIL("no such layout: " << name);
  return {};
}

std::vector<uint32_t> AllSlots(const KvWorld& world) {
  std::vector<uint32_t> slots(world.slot_count());
  std::iota(slots.begin(), slots.end(), 0u);
  return slots;
}

TEST_CASE("GpuEngine copies every known layout like plain loops do, with batches and without") {
  uint32_t turn = 0;
  for (const NamedLayout& named : KnownLayouts()) {
    // A driver without batches makes the same copies one by one: a few layouts will do.
    for (uint32_t no_batches = 0; no_batches <= (turn % 4 == 1 ? 1 : 0); ++no_batches) {
      Planned planned({.seed = 3, .no_batches = no_batches});
      CheckRoundTrip(
          named, Seal::kDevice, 17 + turn, [&](CopyEngine::Done done) { return planned.Make(std::move(done)); },
          planned.gpu.get());
    }
    ++turn;
  }
}

TEST_CASE("GpuEngine copies random layouts like plain loops do, however slow the device") {
  const uint64_t seed = std::random_device()();
  for (uint64_t round = 0; round < 20; ++round) {
    Rng rng(seed + round);
    Planned planned({.seed = seed + round, .delay_us = static_cast<uint32_t>(rng() % 200)});
    CheckRoundTrip(
        RandomLayout(rng), Seal::kDevice, seed + round, [&](CopyEngine::Done done) { return planned.Make(std::move(done)); },
        planned.gpu.get());
  }
}

TEST_CASE("GpuEngine copies by its kernel and by DMA in turns like plain loops do, and large pages by DMA") {
  const uint64_t seed = std::random_device()();
  for (uint64_t round = 0; round < 20; ++round) {
    Rng rng(seed + round);
    Planned planned({.seed = seed + round, .delay_us = static_cast<uint32_t>(rng() % 100)});
    const FakeCudaFigures before = FakeDriver::Get().figures();
    const NamedLayout named = RandomLayout(rng);
    GpuEngineOptions options;
    options.kernel = {.below = Bytes{round % 2 == 0 ? uint64_t{1} << 20 : 512}, .batch_least = {}, .try_every = 2};
    CheckRoundTrip(
        named, Seal::kDevice, seed + round, [&](CopyEngine::Done done) { return planned.Make(std::move(done), options); },
        planned.gpu.get());
    const FakeCudaFigures after = FakeDriver::Get().figures();
    if (KernelImage().empty() || named.layout.segment_bytes >= options.kernel->below) {
      CHECK(after.kernels == before.kernels);
      CHECK(after.copies > before.copies);
    }
    CHECK(after.registered_bytes == before.registered_bytes);
  }
}

// Stores small pages, so many times over, on a device of that plan: what went which way.
struct Went {
  uint64_t kernels = 0;
  uint64_t copy_calls = 0;
  std::vector<PathChoice::Found> found = {};
};
Went StoreSmallPages(FakeCudaPlan plan, uint32_t times) {
  Planned planned(plan);
  KvWorld world(Named("a gap after each page"), Seal::kDevice, 2, 1, planned.gpu.get());  // so all pieces are of one size
  REQUIRE(world.layout().segment_bytes < PathChoice::Options{}.below);
  Rng rng(1);
  Went went;
  GpuEngineOptions options;
  options.kernel = {.batch_least = {}};
  options.found = [&](Direction, const PathChoice::Found& found) { went.found.push_back(found); };
  const FakeCudaFigures before = FakeDriver::Get().figures();
  {
    Ends ends;
    const std::unique_ptr<CopyEngine> engine = planned.Make(ends.Listener(), options);
    for (uint32_t op = 1; op <= times; ++op) {
      Copy copy = world.MakeCopy({op, 1}, Direction::kStore, AllSlots(world), rng);
      const Copy same = copy;
      engine->Submit(std::move(copy));
      CHECK(ends.Wait({op, 1}) == absl::OkStatus());
      CHECK(world.LayersAreEqual(same, world.layers()));
    }
  }
  const FakeCudaFigures after = FakeDriver::Get().figures();
  went.kernels = after.kernels - before.kernels;
  went.copy_calls = after.copy_calls - before.copy_calls;
  return went;
}

TEST_CASE("GpuEngine finds out which way is faster on its device, and takes that") {
  if (KernelImage().empty()) {
    WARN("built without nvcc: there is no kernel to choose");
    return;
  }
  const Went by_kernel = StoreSmallPages({.entry_us = 100}, 60);
  CHECK(by_kernel.kernels >= 50);
  REQUIRE_FALSE(by_kernel.found.empty());
  CHECK(by_kernel.found.back().path == PathChoice::Path::kStaged);
  CHECK(by_kernel.found.back().staged_gb_per_second > by_kernel.found.back().dma_gb_per_second);
  const Went by_dma = StoreSmallPages({.launch_us = 5000}, 60);
  CHECK(by_dma.kernels <= 17);
  CHECK(by_dma.copy_calls >= 50);
  REQUIRE_FALSE(by_dma.found.empty());
  CHECK(by_dma.found.back().path == PathChoice::Path::kDma);
  // A kernel that can't be launched fails nobody's copy.
  const Went refused = StoreSmallPages({.no_launch = 1}, 30);
  CHECK(refused.kernels == 0);
  CHECK(refused.copy_calls >= 30);
}

TEST_CASE("GpuEngine copies page by page what can't be staged: a call of it is refused, or the GPU has no memory left") {
  for (const bool no_memory : {false, true}) {
    Planned planned({});
    KvWorld world(Named("a gap after each page"), Seal::kDevice, 2, 1, planned.gpu.get());
    FakeDriver::Get().Plan(
        {.seed = 4, .delay_us = 30, .refuse_every = no_memory ? 0u : 3u, .no_memory = no_memory ? 1u : 0u});
    Rng rng(1);
    Ends ends;
    GpuEngineOptions options;
    options.kernel = {.batch_least = {}, .worth = 0};
    uint32_t said = 0, right = 0;
    options.no_kernel = [&](const absl::Status& why) { said += absl::IsResourceExhausted(why) ? 1 : 0; };
    {
      const auto engine = planned.Make(ends.Listener(), options);
      for (uint32_t op = 1; op <= 60; ++op) {
        Copy copy = world.MakeCopy({op, 1}, op % 2 == 0 ? Direction::kLoad : Direction::kStore, AllSlots(world), rng);
        const Copy same = copy;
        engine->Submit(std::move(copy));
        if (!ends.Wait({op, 1}).ok()) continue;
        ++right;
        CHECK(world.LayersAreEqual(same, world.layers()));
      }
    }
    if (no_memory && !KernelImage().empty()) CHECK(said == 2);  // each direction, once
    CHECK(right >= (no_memory ? 60 : 20));
    CHECK(planned.gpu->own() == Bytes{});
  }
}

// Units of 6,144 pieces, none of which joins another.
NamedLayout TinyPieces() {
  NamedLayout tiny{"tiny pieces", {}, {}};
  KvLayout& layout = tiny.layout;
  layout.pages = 6 * 1024;
  layout.pages_per_chunk = 1024;
  layout.segment_bytes = Bytes{256};
  layout.segment_offsets = {Bytes{}};
  layout.page_stride = Bytes{320};
  const Bytes layer = layout.page_stride * layout.pages;
  layout.layers = {{0, {0}}, {0, {layer.value}}};
  tiny.region_lengths = {layer * 2};
  return tiny;
}

TEST_CASE("GpuEngine's kernel copies units of more pieces than a launch takes, and batches never wait for such") {
  if (KernelImage().empty()) return;
  Planned planned({.entry_us = 2});
  GpuEngineOptions options;
  options.kernel = {.batch_least = {}};
  const FakeCudaFigures before = FakeDriver::Get().figures();
  KvWorld world(TinyPieces(), Seal::kDevice, 6, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener(), options);
  for (uint32_t op = 1; op <= 24; ++op) {
    Copy copy = world.MakeCopy({op, 1}, op % 2 == 0 ? Direction::kLoad : Direction::kStore, AllSlots(world), rng);
    const Copy same = copy;
    engine->Submit(std::move(copy));
    CHECK(ends.Wait({op, 1}) == absl::OkStatus());
    CHECK(world.LayersAreEqual(same, world.layers()));
  }
  CHECK(FakeDriver::Get().figures().kernels > before.kernels + 24);
}

TEST_CASE("GpuEngine that is kept busy handing over stores lets loads pass, small ones, too") {
  Planned planned({.call_us = 2000});  // so the device is never behind
  KvWorld world(Named("layers of several units"), Seal::kDevice, 4, 1, planned.gpu.get());
  KvWorld small(KnownLayouts()[0], Seal::kDevice, 1, 2, planned.gpu.get());
  REQUIRE(small.layout().payload_bytes() < MiB(1));
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  constexpr uint32_t kStores = 40;
  for (uint32_t op = 1; op <= kStores; ++op)
    engine->Submit(world.MakeCopy({op, 1}, Direction::kStore, AllSlots(world), rng));
  ends.WaitForCount(1);
  const size_t before = ends.order().size();
  engine->Submit(small.MakeCopy({kStores + 1, 1}, Direction::kLoad, {0}, rng));
  CHECK(ends.Wait({kStores + 1, 1}) == absl::OkStatus());
  const auto order = ends.order();
  const auto place = std::find(order.begin(), order.end(), OpId{kStores + 1, 1}) - order.begin();
  CHECK(static_cast<size_t>(place) - before < kStores / 2);
  ends.WaitForCount(kStores + 1);
}

TEST_CASE("GpuEngine ends empty copies, and zeros what a store has no page for") {
  Planned planned({});
  KvWorld world(KnownLayouts()[0], Seal::kDevice, 2, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  engine->Submit(world.MakeCopy({1, 1}, Direction::kLoad, {}, rng));
  CHECK(ends.Wait({1, 1}) == absl::OkStatus());

  Copy store = world.MakeCopy({2, 1}, Direction::kStore, {0, 1}, rng);
  std::fill(store.page_table.begin(), store.page_table.end(), kNoPage);
  engine->Submit(std::move(store));
  CHECK(ends.Wait({2, 1}) == absl::OkStatus());
  const std::byte* payload = world.slot(0) + kSlotHeaderBytes.value;
  CHECK(std::all_of(payload, payload + world.layout().payload_bytes().value, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("GpuEngine: a copy that the driver refuses fails by itself, those beside it go on") {
  Planned planned({.seed = 5, .refuse_every = 3});
  KvWorld world(Named("layers of several units"), Seal::kDevice, 4, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  uint32_t failed = 0;
  for (uint32_t op = 1; op <= 12; ++op) {
    engine->Submit(world.MakeCopy({op, 1}, Direction::kStore, {op % 4}, rng));
    const absl::Status status = ends.Wait({op, 1});
    if (!status.ok()) {
      CHECK(absl::IsResourceExhausted(status));
      ++failed;
    }
  }
  CHECK(failed > 0);
  CHECK(planned.gpu->lost().ok());
  FakeDriver::Get().Plan({});
  Copy last = world.MakeCopy({13, 1}, Direction::kStore, AllSlots(world), rng);
  const Copy same = last;
  engine->Submit(std::move(last));
  CHECK(ends.Wait({13, 1}) == absl::OkStatus());
  CHECK(world.LayersAreEqual(same, world.layers()));
}

TEST_CASE("GpuEngine: when the GPU is lost every copy ends, then and later, with a typed error") {
  Planned planned({.seed = 5, .delay_us = 50, .lose_after = 40});
  KvWorld world(Named("layers of several units"), Seal::kDevice, 4, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  {
    const auto engine = planned.Make(ends.Listener());
    for (uint32_t op = 1; op <= 20; ++op) { engine->Submit(world.MakeCopy({op, 1}, Direction::kStore, {op % 4}, rng)); }
    ends.WaitForCount(20);
    for (uint32_t op = 10; op <= 20; ++op) CHECK(absl::IsUnavailable(ends.Wait({op, 1})));
    CHECK(absl::IsUnavailable(planned.gpu->lost()));
    engine->Submit(world.MakeCopy({21, 1}, Direction::kLoad, {0}, rng));
    CHECK(absl::IsUnavailable(ends.Wait({21, 1})));
  }
  CHECK(ends.order().size() == 21);
}

TEST_CASE("GpuEngine: cancelled copies end soon, and nothing touches their pages or slots afterwards") {
  for (uint64_t round = 0; round < 30; ++round) {
    Planned planned({.seed = round + 1, .delay_us = 100});
    KvWorld world(Named("layers of several units"), Seal::kDevice, 4, round, planned.gpu.get());
    Rng rng(round);
    Ends ends;
    const auto engine = planned.Make(ends.Listener());
    // One stream: they share pages and slots
    const Direction direction = round % 2 == 0 ? Direction::kLoad : Direction::kStore;
    for (uint32_t op = 1; op <= 8; ++op) engine->Submit(world.MakeCopy({op, 1}, direction, AllSlots(world), rng));
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 1500));
    for (uint32_t op = 1; op <= 8; ++op) engine->Cancel({op, 1});
    for (uint32_t op = 1; op <= 8; ++op) {
      const absl::Status status = ends.Wait({op, 1});
      CHECK((status.ok() || absl::IsCancelled(status)));
    }
    const KvWorld::Image quiet = world.Snapshot();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(world.Snapshot() == quiet);
  }
}

TEST_CASE("GpuEngine that ends ends its copies") {
  Planned planned({.seed = 9, .delay_us = 100});
  KvWorld world(Named("layers of several units"), Seal::kDevice, 4, 1, planned.gpu.get());
  Rng rng(2);
  Ends ends;
  {
    const auto engine = planned.Make(ends.Listener());
    for (uint32_t op = 1; op <= 8; ++op) engine->Submit(world.MakeCopy({op, 1}, Direction::kLoad, AllSlots(world), rng));
  }
  CHECK(ends.order().size() == 8);
}

// An engine's stream that writes layer after layer.
class Source final : public PagesReady {
 public:
  bool LayersReady(uint32_t layers) const override { return written_.load(std::memory_order_acquire) >= layers; }
  void Written(uint32_t layers) { written_.store(layers, std::memory_order_release); }

 private:
  std::atomic<uint32_t> written_{0};
};

TEST_CASE("A store of pages that are still being written copies each layer when it is, and nothing before") {
  const std::vector<NamedLayout> known = KnownLayouts();
  for (uint32_t round = 0; round < 20; ++round) {
    const NamedLayout& named = known[round % known.size()];
    CAPTURE(round, named.name);
    Planned planned({.seed = round + 1, .delay_us = round % 3 == 0 ? 60u : 0u});
    KvWorld world(named, Seal::kDevice, 3, round, planned.gpu.get());
    Rng rng(round);
    Ends ends;
    const auto engine = planned.Make(ends.Listener());
    Copy copy = world.MakeCopy({1, 1}, Direction::kStore, {2, 0, 1}, rng);
    const auto source = std::make_shared<Source>();
    copy.pages_ready = source;
    const Copy same = copy;
    // Pages hold something else until they are written: loads from other slots' random bytes do the writing.
    const KvWorld::Image before = world.Snapshot();
    engine->Submit(std::move(copy));
    // Loads and other stores don't wait for it.
    Copy other = world.MakeCopy({2, 1}, Direction::kLoad, {}, rng);
    engine->Submit(std::move(other));
    CHECK(ends.Wait({2, 1}) == absl::OkStatus());
    CHECK(world.Snapshot() == before);
    Copy until_now = same;
    for (uint32_t layer = 1; layer <= world.layers(); ++layer) {
      // One slot of which nothing may have been copied of layers from `layer` on.
      const std::byte* rest = world.slot(2) + kSlotHeaderBytes.value + world.layout().layer_bytes().value * (layer - 1);
      const auto rest_bytes = static_cast<size_t>(world.layout().layer_bytes().value * (world.layers() - layer + 1));
      const size_t at = static_cast<size_t>(rest - world.slot(0)) + 128;
      CHECK(std::memcmp(rest, before.slots.data() + at, rest_bytes) == 0);
      source->Written(layer);
      engine->Look();
    }
    CHECK(ends.Wait({1, 1}) == absl::OkStatus());
    CHECK(world.LayersAreEqual(same, world.layers()));
  }
}

TEST_CASE("A store whose pages are never written ends when it is cancelled, and holds nobody up") {
  Planned planned({});
  KvWorld world(KnownLayouts()[0], Seal::kDevice, 2, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  Copy never = world.MakeCopy({1, 1}, Direction::kStore, {0}, rng);
  never.pages_ready = std::make_shared<Source>();
  engine->Submit(std::move(never));
  for (uint32_t op = 2; op <= 30; ++op) {
    engine->Submit(world.MakeCopy({op, 1}, op % 2 == 0 ? Direction::kLoad : Direction::kStore, {1}, rng));
    CHECK(ends.Wait({op, 1}) == absl::OkStatus());
  }
  CHECK(ends.order().size() == 29);
  engine->Cancel({1, 1});
  CHECK(absl::IsCancelled(ends.Wait({1, 1})));
}

TEST_CASE("A copy whose pages aren't ready in time ends by itself") {
  Planned planned({});
  KvWorld world(KnownLayouts()[0], Seal::kDevice, 2, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  for (const Direction direction : {Direction::kLoad, Direction::kStore}) {
    const OpId op{direction == Direction::kLoad ? 1u : 2u, 1};
    Copy never = world.MakeCopy(op, direction, {0, 1}, rng);
    never.pages_ready = std::make_shared<Source>();
    never.ready_by_nanos = MonotonicNanos() + 20'000'000;
    const KvWorld::Image before = world.Snapshot();
    engine->Submit(std::move(never));
    CHECK(absl::IsDeadlineExceeded(ends.Wait(op)));
    CHECK(world.Snapshot() == before);
  }
}

class Claim final : public BusClaim {
 public:
  int64_t UntilNanos() const override { return until.load(); }
  std::atomic<int64_t> until{0};
};

TEST_CASE("GpuEngine leaves the bus to an engine that claims it: stores wait for a while, loads don't") {
  Planned planned({});
  KvWorld world(KnownLayouts()[0], Seal::kDevice, 2, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  const auto claim = std::make_shared<Claim>();
  const auto make = [&](uint32_t op, Direction direction) {
    Copy copy = world.MakeCopy({op, 1}, direction, {op % 2}, rng);
    copy.bus = claim;
    return copy;
  };
  const auto begin = [&](uint32_t op, Direction direction) { engine->Submit(make(op, direction)); };
  // Made before the clock runs: between it and the load lies nothing but two calls.
  Copy store = make(1, Direction::kStore), load = make(2, Direction::kLoad);
  const int64_t start = MonotonicNanos();
  claim->until = start + 90'000'000;  // less than BusClaims::kMost
  engine->Submit(std::move(store));
  engine->Submit(std::move(load));
  const bool in_time = MonotonicNanos() < claim->until;
  const int64_t load_began = ends.WaitForEnd({2, 1}).began_nanos;
  const int64_t store_began = ends.WaitForEnd({1, 1}).began_nanos;
  if (in_time) CHECK(load_began < store_began);
  CHECK(store_began >= claim->until);
  // For ever: stores go on all the same; it is one row with what was before.
  claim->until = INT64_MAX;
  begin(3, Direction::kStore);
  const CopyEnd end = ends.WaitForEnd({3, 1});
  CHECK(end.status.ok());
  CHECK(end.began_nanos >= start + absl::ToInt64Nanoseconds(BusClaims::kMost));
  // And what is held back ends when it is cancelled, or with the engine.
  begin(4, Direction::kStore);
  engine->Cancel({4, 1});
  const absl::Status cancelled = ends.Wait({4, 1});
  CHECK((absl::IsCancelled(cancelled) || cancelled.ok()));
  begin(5, Direction::kStore);
}

TEST_CASE("A load to a GPU from slots that are being read copies what is there, and ends with the read's error") {
  Planned planned({.seed = 2, .delay_us = 30});
  KvWorld world(Named("layers of several units"), Seal::kDevice, 2, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener());
  for (const bool fails : {false, true}) {
    const OpId op{fails ? 2u : 1u, 1};
    Copy copy = world.MakeCopy(op, Direction::kLoad, {0, 1}, rng);
    const auto arrival = std::make_shared<SlotArrival>();
    copy.arrivals = {arrival, nullptr};
    const Copy same = copy;
    engine->Submit(std::move(copy));
    for (uint32_t layer = 1; layer < world.layers(); ++layer) {
      if (arrival->Arrived(layer)) engine->Arrived();
    }
    if (arrival->End(fails ? absl::DataLossError("the disk's") : absl::OkStatus())) engine->Arrived();
    const absl::Status status = ends.Wait(op);
    CHECK(status == (fails ? absl::DataLossError("the disk's") : absl::OkStatus()));
    if (!fails) CHECK(world.LayersAreEqual(same, world.layers()));
  }
}

TEST_CASE("GpuEngine that verifies gives nothing out of a chunk that isn't what was stored") {
  Planned planned({});
  KvWorld world(KnownLayouts()[3], Seal::kDevice, 3, 1, planned.gpu.get());
  Rng rng(1);
  Ends ends;
  const auto engine = planned.Make(ends.Listener(), {.verify = Verify::kAlways});
  engine->Submit(world.MakeCopy({1, 1}, Direction::kStore, {0, 1, 2}, rng));
  REQUIRE(ends.Wait({1, 1}) == absl::OkStatus());
  for (uint32_t slot = 0; slot < 3; ++slot) CHECK(ChecksumMatches(world.slot(slot), world.layout(), {0}));
  world.slot(1)[kSlotHeaderBytes.value + 3] ^= std::byte{1};
  const KvWorld::Image before = world.Snapshot();
  Copy load = world.MakeCopy({2, 1}, Direction::kLoad, {0, 1, 2}, rng);
  load.layer_count = 1;
  engine->Submit(std::move(load));
  const CopyEnd end = ends.WaitForEnd({2, 1});
  CHECK(absl::IsDataLoss(end.status));
  CHECK(end.corrupt == std::vector<uint32_t>{1});
  CHECK(world.Snapshot() == before);
}

}  // namespace
}  // namespace kvist::cuda
