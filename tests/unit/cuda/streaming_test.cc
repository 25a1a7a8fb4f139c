// Loads from slots that are still being read into.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "cuda/shared_memory_engine.h"
#include "cuda/slot_arrival.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

using Arrivals = std::vector<std::shared_ptr<SlotArrival>>;

Arrivals ArrivalsFor(Copy* copy) {
  Arrivals arrivals;
  for (size_t slot = 0; slot < copy->slots.size(); ++slot) {
    arrivals.push_back(std::make_shared<SlotArrival>());
    copy->arrivals.push_back(arrivals.back());
  }
  return arrivals;
}

// Counts layers that were said to be done before all slots had them.
class Watch final : public LayerProgress {
 public:
  Watch(Arrivals arrivals, uint32_t first_layer) : arrivals_(std::move(arrivals)), first_layer_(first_layer) {}
  void LayersDone(uint32_t layers) override {
    for (const auto& arrival : arrivals_) early += arrival != nullptr && !arrival->Settled(first_layer_ + layers);
    done = layers;
  }
  std::atomic<uint32_t> early{0}, done{0};

 private:
  const Arrivals arrivals_;
  const uint32_t first_layer_;
};

TEST_CASE("SlotArrival says that somebody lacked what has come, once, and not before") {
  SlotArrival arrival;
  CHECK(!arrival.Arrived(1));
  CHECK(arrival.SettledOrLacked(1));
  CHECK(!arrival.SettledOrLacked(5));
  CHECK(!arrival.SettledOrLacked(3));
  CHECK(!arrival.Arrived(2));
  CHECK(arrival.Arrived(4));  // whoever lacks more has to say so again
  CHECK(!arrival.Arrived(5));
  CHECK(!arrival.SettledOrLacked(7));
  CHECK(arrival.End(absl::OkStatus()));
  CHECK(arrival.SettledOrLacked(7));

  SlotArrival fails;
  CHECK(!fails.End(absl::DataLossError("it isn't what was stored")));
  CHECK(fails.SettledOrLacked(7));
}

TEST_CASE("A load of slots that are being read copies each layer when it is there, and nothing before") {
  const auto order = GENERATE(Order::kByLayer, Order::kByChunk);
  Rng rng(order == Order::kByLayer ? 5 : 6);
  const std::vector<NamedLayout> known = KnownLayouts();
  for (uint32_t round = 0; round < 40; ++round) {
    const NamedLayout& named = known[round % known.size()];
    KvWorld world(named, Seal::kShrink, 5, round);
    CAPTURE(round, named.name);
    Ends ends;
    const auto engine = MakeSharedMemoryEngine({.threads = 1 + round % 3, .cpus = {}}, ends.Listener());
    Copy copy = world.MakeCopy({1, 1}, Direction::kLoad, {2, 4, 0, 1, 3}, rng);
    copy.order = order;
    if (round % 4 == 1 && world.layers() > 2) {
      copy.first_layer = 1;
      copy.layer_count = world.layers() - 2;
    }
    Arrivals arrivals = ArrivalsFor(&copy);
    arrivals[3] = nullptr;  // one that is there already
    copy.arrivals[3] = nullptr;
    const Copy same = copy;
    KvWorld::Image expected = world.Snapshot();
    world.Apply(same, &expected);
    // What is in the slots before it is read is something else.
    const uint64_t layer_bytes = world.layout().layer_bytes().value;
    const uint64_t payload = layer_bytes * world.layers();
    std::vector<std::vector<std::byte>> read(copy.slots.size());
    for (size_t slot = 0; slot < copy.slots.size(); ++slot) {
      if (arrivals[slot] == nullptr) continue;
      std::byte* const bytes = copy.slots[slot] + kSlotHeaderBytes.value;
      read[slot].assign(bytes, bytes + payload);
      std::memset(bytes, 0x5A, payload);
    }
    const auto watch = std::make_shared<Watch>(arrivals, copy.first_layer);
    copy.progress = watch;
    const bool early = round % 2 == 0;  // some of it comes before the load is asked for
    const auto submit = [&] { engine->Submit(std::move(copy)); };
    if (!early) submit();
    std::vector<uint32_t> there(arrivals.size());
    uint32_t left = static_cast<uint32_t>(arrivals.size()) - 1;
    for (uint32_t step = 0; left > 0; ++step) {
      const size_t slot = rng() % arrivals.size();
      if (arrivals[slot] == nullptr || there[slot] == world.layers()) continue;
      const auto more = 1 + static_cast<uint32_t>(rng() % (world.layers() - there[slot]));
      std::memcpy(same.slots[slot] + kSlotHeaderBytes.value + layer_bytes * there[slot],
                  read[slot].data() + layer_bytes * there[slot], layer_bytes * more);
      there[slot] += more;
      const bool at_end = there[slot] == world.layers() && rng() % 2 == 0;
      const bool lacked = at_end ? arrivals[slot]->End(absl::OkStatus()) : arrivals[slot]->Arrived(there[slot]);
      left -= there[slot] == world.layers();
      if (lacked) engine->Arrived();
      if (early && step == 3) submit();
      if (early && step < 3 && left == 0) submit();
    }
    if (!copy.slots.empty()) submit();
    REQUIRE(ends.Wait({1, 1}).ok());
    CHECK(watch->early == 0);
    CHECK(watch->done == same.layer_count);
    CHECK(world.Snapshot() == expected);
  }
}

TEST_CASE("A load that waits for what is being read holds nobody up") {
  KvWorld world(KnownLayouts()[12], Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
  Copy waits = world.MakeCopy({1, 1}, Direction::kLoad, {0, 1}, rng);
  const Copy same = waits;
  const Arrivals arrivals = ArrivalsFor(&waits);
  engine->Submit(std::move(waits));
  engine->Submit(world.MakeCopy({2, 1}, Direction::kLoad, {2}, rng));
  engine->Submit(world.MakeCopy({3, 1}, Direction::kStore, {3}, rng));
  ends.WaitForCount(2);
  CHECK(ends.Wait({2, 1}).ok());
  CHECK(ends.Wait({3, 1}).ok());
  for (const auto& arrival : arrivals) {
    if (arrival->End(absl::OkStatus())) engine->Arrived();
  }
  CHECK(ends.Wait({1, 1}).ok());
  CHECK(world.LayersAreEqual(same, same.layer_count));
}

TEST_CASE("A load ends with what its slots' reads end with") {
  const auto order = GENERATE(Order::kByLayer, Order::kByChunk);
  KvWorld world(KnownLayouts()[12], Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 2, .cpus = {}}, ends.Listener());
  for (uint32_t op = 1; op <= 20; ++op) {
    Copy copy = world.MakeCopy({op, 1}, Direction::kLoad, {0, 1, 2, 3}, rng);
    copy.order = order;
    const Arrivals arrivals = ArrivalsFor(&copy);
    const bool before = op % 2 == 0;
    const auto fail = [&] {
      static_cast<void>(arrivals[op % 4]->End(absl::DataLossError("it isn't what was stored")));
      engine->Look();
    };
    if (before) fail();
    engine->Submit(std::move(copy));
    if (op % 3 == 0 && arrivals[(op + 1) % 4]->Arrived(1)) engine->Arrived();
    if (!before) fail();
    CHECK(ends.Wait({op, 1}).message() == "it isn't what was stored");
  }
}

TEST_CASE("Many loads of what is being read are told of it by several threads, and some are cancelled half way") {
  KvWorld world(KnownLayouts()[12], Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  auto engine = MakeSharedMemoryEngine({.threads = 3, .cpus = {}}, ends.Listener());
  constexpr uint32_t kRounds = 10, kCopies = 16;
  for (uint32_t round = 0; round < kRounds; ++round) {
    // All load the same slots, into pages of their own that nobody looks at: who ends well is the point.
    Copy first = world.MakeCopy({1, 1}, Direction::kLoad, {0, 1, 2, 3}, rng);
    const Arrivals arrivals = ArrivalsFor(&first);
    for (uint32_t c = 0; c < kCopies; ++c) {
      Copy copy = first;
      copy.op = {round * kCopies + c, 1};
      copy.order = c % 2 == 0 ? Order::kByLayer : Order::kByChunk;
      engine->Submit(std::move(copy));
    }
    std::vector<std::thread> devices;
    for (size_t slot = 0; slot < arrivals.size(); ++slot) {
      devices.emplace_back([&, slot] {
        for (uint32_t layer = 1; layer < world.layers(); ++layer) {
          if (arrivals[slot]->Arrived(layer)) engine->Arrived();
        }
        const bool fails = slot == 3 && round % 5 == 4;
        if (arrivals[slot]->End(fails ? absl::UnavailableError("EIO") : absl::OkStatus())) engine->Arrived();
        if (fails) engine->Look();
      });
    }
    for (uint32_t c = 0; c < kCopies; c += 4) engine->Cancel({round * kCopies + c, 1});
    for (std::thread& device : devices) device.join();
    for (uint32_t c = 0; c < kCopies; ++c) {
      const absl::Status status = ends.Wait({round * kCopies + c, 1});
      if (c % 4 != 0) REQUIRE((round % 5 == 4 ? absl::IsUnavailable(status) : status.ok()));
    }
  }
  CHECK(ends.order().size() == kRounds * kCopies);
}

TEST_CASE("A load that waits is quiet soon after it was cancelled, and when the engine ends") {
  KvWorld world(KnownLayouts()[12], Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  auto engine = MakeSharedMemoryEngine({.threads = 2, .cpus = {}}, ends.Listener());
  const KvWorld::Image before = world.Snapshot();
  Arrivals all;
  for (uint32_t op = 1; op <= 3; ++op) {
    Copy copy = world.MakeCopy({op, 1}, Direction::kLoad, {0, 1, 2, 3}, rng);
    for (const auto& arrival : ArrivalsFor(&copy)) all.push_back(arrival);
    engine->Submit(std::move(copy));
  }
  engine->Cancel({2, 1});
  CHECK(absl::IsCancelled(ends.Wait({2, 1})));
  CHECK(ends.order().size() == 1);
  engine.reset();
  CHECK(absl::IsCancelled(ends.Wait({1, 1})));
  CHECK(absl::IsCancelled(ends.Wait({3, 1})));
  CHECK(ends.order().size() == 3);
  CHECK(world.Snapshot() == before);
}

}  // namespace
}  // namespace kvist::cuda
