#include "cuda/staging_ring.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>

#include "tests/unit/cuda/gpu_under_test.h"

namespace kvist::cuda {
namespace {

constexpr uint64_t kRing = 64 << 10;

TEST_CASE("StagingRing's spans never overlap, lie in its memory, and there is room while little is in use") {
  const auto gpu = FakeDriver::Get().OpenGpu();
  const driver::Current current(gpu->driver(), gpu->context());
  const uint64_t seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  auto ring = StagingRing::Make(gpu.get(), Bytes{kRing}).value();
  CHECK(gpu->own() == Bytes{kRing});
  const driver::Address base = ring->Take(Bytes{1});
  ring->GiveBack();
  std::deque<std::pair<uint64_t, uint64_t>> taken;
  uint64_t in_use = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      ring->GiveBack();
      in_use -= taken.front().second - taken.front().first;
      taken.pop_front();
      continue;
    }
    const uint64_t size = 1 + random() % (random() % 8 == 0 ? kRing : kRing / 8);
    const driver::Address at = ring->Take(Bytes{size});
    if (at == 0) {
      CHECK(2 * size + in_use > kRing / 2);  // at its end less is lost than is in use
      continue;
    }
    const uint64_t first = at - base, end = first + size;
    CHECK(at % 256 == 0);
    CHECK(end <= kRing);
    for (const auto& [from, to] : taken) CHECK((end <= from || to <= first));
    taken.emplace_back(first, end);
    in_use += size;
  }
  for (; !taken.empty(); taken.pop_front()) ring->GiveBack();
  CHECK(ring->Take(Bytes{kRing + 1}) == 0);
  CHECK(ring->Take(Bytes{kRing}) == base);
  CHECK(ring->Take(Bytes{1}) == 0);
  ring.reset();
  CHECK(gpu->own() == Bytes{});
}

}  // namespace
}  // namespace kvist::cuda
