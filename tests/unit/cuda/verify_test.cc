// Row 13 within the copy engine: a store's checksums, asked before a load gives anything out.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/shared_memory_engine.h"
#include "cuda/slot_checksums.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

// A world, an engine that verifies, and calls that read like what is done to them.
class Verified {
 public:
  Verified(const NamedLayout& named, Seal seal, uint32_t slots, uint32_t threads = 2)
      : world(named, seal, slots, 3),
        engine_(MakeSharedMemoryEngine({.threads = threads, .cpus = {}, .verify = Verify::kAlways}, ends_.Listener())) {
    all_.resize(slots);
    std::iota(all_.begin(), all_.end(), 0u);
  }

  CopyEnd Do(Direction direction, std::vector<uint32_t> slots, uint32_t first_layer, uint32_t layers,
             std::shared_ptr<LayerProgress> progress = nullptr, size_t absent_page = SIZE_MAX) {
    copy = world.MakeCopy({++op_, 1}, direction, slots, rng_);
    copy.first_layer = first_layer;
    copy.layer_count = layers;
    copy.progress = std::move(progress);
    if (absent_page < copy.page_table.size()) copy.page_table[absent_page] = kNoPage;
    engine_->Submit(copy);
    return ends_.WaitForEnd({op_, 1});
  }
  CopyEnd StoreAll() { return Do(Direction::kStore, all_, 0, world.layers()); }
  CopyEnd LoadAll() { return Do(Direction::kLoad, all_, 0, world.layers()); }

  KvWorld world;
  Copy copy;  // the last one

 private:
  Rng rng_{5};
  Ends ends_;
  std::unique_ptr<CopyEngine> engine_;
  std::vector<uint32_t> all_;
  uint32_t op_ = 0;
};

NamedLayout Small() {
  KvLayout layout;
  layout.layers = {{0, {0}}, {0, {500}}, {0, {1000}}};
  layout.pages = 8;
  layout.page_stride = {40};
  layout.segment_offsets = {{0}, {20}};
  layout.segment_bytes = {17};
  layout.pages_per_chunk = 2;
  return {"small", layout, {{1500}}};
}

TEST_CASE("SharedMemoryEngine that verifies copies every known layout, and finds its own checksums right") {
  for (const NamedLayout& named : KnownLayouts()) {
    for (const Seal seal : {Seal::kShrink, Seal::kNone, Seal::kProcess}) {
      INFO(named.name << ", seal " << static_cast<int>(seal));
      Verified v(named, seal, 2);
      REQUIRE(v.StoreAll().status == absl::OkStatus());
      REQUIRE(v.world.LayersAreEqual(v.copy, v.world.layers()));
      for (uint32_t slot = 0; slot < 2; ++slot) {
        for (uint32_t layer = 0; layer < v.world.layers(); ++layer)
          REQUIRE(ChecksumMatches(v.world.slot(slot), v.world.layout(), {layer}));
      }
      REQUIRE(v.LoadAll().status == absl::OkStatus());
      REQUIRE(v.world.LayersAreEqual(v.copy, v.world.layers()));
    }
  }
}

TEST_CASE("Row 13: each single bit of a shard and of its checksums is missed when it is flipped") {
  Verified v(Small(), Seal::kShrink, 1, 1);
  REQUIRE(v.StoreAll().status == absl::OkStatus());
  std::byte* slot = v.world.slot(0);
  const uint64_t payload = v.world.layout().payload_bytes().value;
  uint64_t injected = 0, detected = 0;
  const auto flip = [&](uint64_t byte) {
    for (int bit = 0; bit < 8; ++bit) {
      slot[byte] ^= std::byte{1} << bit;
      ++injected;
      detected += absl::IsDataLoss(v.LoadAll().status);
      slot[byte] ^= std::byte{1} << bit;
    }
  };
  for (uint64_t byte = 0; byte < payload; ++byte) flip(kSlotHeaderBytes.value + byte);
  for (uint64_t byte = 0; byte < v.world.layers() * sizeof(uint64_t); ++byte) flip(kSlotChecksumsAt.value + byte);
  CHECK(injected == 8 * (payload + 24));
  CHECK(detected == injected);
  CHECK(v.LoadAll().status == absl::OkStatus());  // all are flipped back
}

TEST_CASE("SharedMemoryEngine gives out no layer that isn't what was stored, and says whose it is") {
  const NamedLayout named = KnownLayouts()[12];  // of several units
  for (const bool in_checksum : {false, true}) {
    Verified v(named, Seal::kShrink, 4, 1);
    REQUIRE(v.StoreAll().status == absl::OkStatus());
    const uint32_t layers = v.world.layers(), bad = layers / 2;
    REQUIRE(bad > 0);
    const uint64_t layer_bytes = v.world.layout().layer_bytes().value;
    const auto spoil = [&](uint32_t slot) {
      const uint64_t at = in_checksum ? kSlotChecksumsAt.value + bad * sizeof(uint64_t)
                                      : kSlotHeaderBytes.value + bad * layer_bytes + layer_bytes / 3;
      v.world.slot(slot)[at] ^= std::byte{64};
    };
    spoil(2);
    const auto progress = std::make_shared<Gate>(UINT32_MAX);
    const CopyEnd end = v.Do(Direction::kLoad, {0, 1, 2, 3}, 0, layers, progress);
    CHECK(end.status.code() == absl::StatusCode::kDataLoss);
    CHECK(end.corrupt == std::vector<uint32_t>{2});
    CHECK(progress->layers() <= bad);
    CHECK(v.world.LayersAreEqual(v.copy, progress->layers()));
    // Nothing of the bad layer of that chunk has reached a page.
    Copy only = v.copy;
    only.slots = {v.copy.slots[2]};
    const uint32_t pages = v.world.layout().pages_per_chunk;
    only.page_table.assign(v.copy.page_table.begin() + 2 * pages, v.copy.page_table.begin() + 3 * pages);
    only.first_layer = bad;
    only.layer_count = 1;
    if (!in_checksum) CHECK_FALSE(v.world.LayersAreEqual(only, 1));

    // Layers and chunks that are whole can be had.
    CHECK(v.Do(Direction::kLoad, {2}, 0, bad).status == absl::OkStatus());
    CHECK(v.Do(Direction::kLoad, {2}, bad + 1, layers - bad - 1).status == absl::OkStatus());
    CHECK(v.Do(Direction::kLoad, {0, 1, 3}, 0, layers).status == absl::OkStatus());
    CHECK(v.Do(Direction::kLoad, {2}, bad, 1).corrupt == std::vector<uint32_t>{0});
    // One unit names all that it meets.
    spoil(3);
    const CopyEnd two = v.Do(Direction::kLoad, {3, 0, 2}, bad, 1);
    CHECK(two.status.code() == absl::StatusCode::kDataLoss);
    CHECK((two.corrupt == std::vector<uint32_t>{0, 2} || two.corrupt.size() == 1));  // one, where a layer has units for each
    // What is stored anew is whole again.
    REQUIRE(v.StoreAll().status == absl::OkStatus());
    CHECK(v.LoadAll().status == absl::OkStatus());
  }
}

TEST_CASE("SharedMemoryEngine's checksums are of what lies in the slot, also where a store had no page") {
  Verified v(Small(), Seal::kShrink, 2);
  REQUIRE(v.Do(Direction::kStore, {0, 1}, 0, 3, nullptr, 1).status == absl::OkStatus());
  CHECK(v.LoadAll().status == absl::OkStatus());
}

TEST_CASE("SharedMemoryEngine finds layers that changed places, and those of a slot that was never stored") {
  Verified v(Small(), Seal::kShrink, 1);
  CHECK(absl::IsDataLoss(v.LoadAll().status));
  REQUIRE(v.StoreAll().status == absl::OkStatus());
  const uint64_t layer_bytes = v.world.layout().layer_bytes().value;
  std::byte* slot = v.world.slot(0);
  std::byte* payload = slot + kSlotHeaderBytes.value;
  std::swap_ranges(payload, payload + layer_bytes, payload + layer_bytes);
  std::byte* checksums = slot + kSlotChecksumsAt.value;
  std::swap_ranges(checksums, checksums + 8, checksums + 8);
  CHECK(absl::IsDataLoss(v.LoadAll().status));
}

}  // namespace
}  // namespace kvist::cuda
