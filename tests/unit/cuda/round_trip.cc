#include "tests/unit/cuda/round_trip.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>
#include <utility>
#include <vector>

namespace kvist::cuda {
namespace {

// Checks at each report that the layers are really there, that they rise, and that no two reports meet.
class Observer final : public LayerProgress {
 public:
  Observer(const KvWorld* world, const Copy& copy) : world_(world), copy_(copy) { copy_.progress = nullptr; }
  void LayersDone(uint32_t layers) override {
    if (inside_.exchange(true)) wrong_ = true;
    if (layers <= last_ || layers > copy_.layer_count || !world_->LayersAreEqual(copy_, layers)) wrong_ = true;
    last_ = layers;
    inside_ = false;
  }
  bool Saw(uint32_t layers) const { return !wrong_ && last_ == layers; }

 private:
  const KvWorld* world_;
  Copy copy_;
  std::atomic<bool> inside_{false}, wrong_{false};
  std::atomic<uint32_t> last_{0};
};

}  // namespace

void CheckRoundTrip(const NamedLayout& named, Seal seal, uint64_t seed,
                    const std::function<std::unique_ptr<CopyEngine>(CopyEngine::Done)>& make, Gpu* gpu) {
  INFO("layout: " << named.name << ", seal " << static_cast<int>(seal) << ", seed " << seed);
  Rng rng(seed);
  const uint32_t chunks_max = std::min<uint32_t>(8, named.layout.pages / named.layout.pages_per_chunk);
  KvWorld world(named, seal, chunks_max, seed, gpu);
  KvWorld::Image expected = world.Snapshot();
  Ends ends;
  const std::unique_ptr<CopyEngine> engine = make(ends.Listener());
  for (uint32_t op = 1; op <= 6; ++op) {
    const Direction direction = op % 2 == 0 ? Direction::kLoad : Direction::kStore;
    std::vector<uint32_t> slots(chunks_max);
    std::iota(slots.begin(), slots.end(), 0u);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(1 + rng() % slots.size());
    Copy copy = world.MakeCopy({op, 1}, direction, slots, rng);
    if (op > 2) {  // the first two are whole
      copy.first_layer = static_cast<uint32_t>(rng() % world.layers());
      copy.layer_count = 1 + static_cast<uint32_t>(rng() % (world.layers() - copy.first_layer));
    }
    const auto observer = std::make_shared<Observer>(&world, copy);
    copy.progress = observer;
    world.Apply(copy, &expected);
    const uint32_t layer_count = copy.layer_count;
    engine->Submit(std::move(copy));
    REQUIRE(ends.Wait({op, 1}) == absl::OkStatus());
    REQUIRE(world.Snapshot() == expected);
    REQUIRE(observer->Saw(layer_count));
  }
  CHECK(ends.order().size() == 6);
}

}  // namespace kvist::cuda
