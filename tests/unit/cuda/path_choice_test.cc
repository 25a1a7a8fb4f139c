#include "cuda/path_choice.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>

namespace kvist::cuda {
namespace {

using Path = PathChoice::Path;

// A device with a speed for each way, in GB/s by the size of pieces; sends batches and tells how long they took.
struct Device {
  std::function<double(Bytes)> dma, staged;
  std::map<Path, uint64_t> batches = {};
  std::optional<PathChoice::Found> found = {};

  Path Batch(PathChoice* choice, Bytes piece, Bytes batch = MiB(8)) {
    const Path path = choice->Next(piece, batch);
    ++batches[path];
    const double speed = (path == Path::kDma ? dma : staged)(piece);
    if (auto now = choice->Learn(path, piece, batch, absl::Nanoseconds(static_cast<double>(batch.value) / speed)))
      found = now;
    return path;
  }
};

// 0.6 us an entry up to 55 GB/s, against 40 GB/s whatever the size.
Device Usual() {
  return {[](Bytes piece) { return std::min(55.0, static_cast<double>(piece.value) / 600); }, [](Bytes) { return 40.0; }};
}

TEST_CASE("PathChoice takes for each size the way that has been faster, and always DMA for large pieces") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 100; ++i) {
    for (const Bytes piece : {KiB(4), KiB(16), KiB(32), KiB(64), MiB(2)}) device.Batch(&choice, piece);
  }
  CHECK(choice.Next(KiB(4), MiB(8)) == Path::kStaged);        // 6.8 against 40
  CHECK(choice.Next(KiB(16), MiB(8)) == Path::kStaged);       // 27
  CHECK(choice.Next(Bytes{20000}, MiB(8)) == Path::kStaged);  // one class
  CHECK(choice.Next(KiB(32), MiB(8)) == Path::kDma);          // 55
  CHECK(choice.Next(KiB(64), MiB(8)) == Path::kDma);
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kDma);  // nothing is known of these yet
}

TEST_CASE("PathChoice spends few batches on the slower way, and says once what it has found") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 3 + 1 + 8; ++i) device.Batch(&choice, KiB(4));
  REQUIRE(device.found.has_value());
  CHECK(device.found->path == Path::kStaged);
  CHECK_FALSE(device.found->again);
  CHECK(device.found->piece == KiB(4));
  CHECK(device.found->staged_gb_per_second == Approx(40).epsilon(0.01));
  CHECK(device.found->dma_gb_per_second == Approx(6.83).epsilon(0.01));
  device.found.reset();
  device.batches.clear();
  for (int i = 0; i < 25600; ++i) device.Batch(&choice, KiB(4));
  CHECK(device.batches[Path::kDma] <= 100);
  CHECK_FALSE(device.found.has_value());
}

TEST_CASE("PathChoice changes its mind when the world has changed, and only then") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 300; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kStaged);
  // An engine works now, and what is staged waits for its turns.
  device.staged = [](Bytes) { return 5.0; };
  for (int i = 0; i < 60; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kDma);
  // It has stopped: one try isn't enough against what is known, some are.
  device.staged = [](Bytes) { return 40.0; };
  for (int i = 0; i < 256 * 12; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kStaged);
  // Between the two bounds nothing changes, from either side.
  for (const double factor : {1.15, 1.2}) {
    device.staged = [&](Bytes piece) { return factor * device.dma(piece); };
    for (int i = 0; i < 3000; ++i) device.Batch(&choice, KiB(8));
    CHECK(choice.Next(KiB(8), MiB(8)) == Path::kStaged);
    PathChoice other;
    for (int i = 0; i < 3000; ++i) device.Batch(&other, KiB(8));
    CHECK(other.Next(KiB(8), MiB(8)) == Path::kDma);
  }
}

TEST_CASE("PathChoice isn't misled by what is staged ending in bursts") {
  PathChoice choice;
  const auto batch = [&](uint64_t turn) {
    const Path path = choice.Next(KiB(16), MiB(8));
    // Eight batches in a turn of 1.25 ms, at once: 53 GB/s. By DMA it is 32.
    const absl::Duration took = path == Path::kDma ? absl::Microseconds(262)
                                : turn % 8 == 0    ? absl::Microseconds(1250)
                                                   : absl::Microseconds(1);
    (void)choice.Learn(path, KiB(16), MiB(8), took);
    return path;
  };
  uint64_t staged = 0;
  for (uint64_t turn = 0; turn < 10'000; ++turn) staged += batch(turn) == Path::kStaged ? 1 : 0;
  CHECK(staged > 9'000);
}

TEST_CASE("PathChoice learns nothing from small batches, from warming up, and from ways that always fail") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 1000; ++i) CHECK(device.Batch(&choice, KiB(4), KiB(512)) == Path::kDma);
  CHECK_FALSE(device.found.has_value());
  // Staged batches all fail: nothing is learned of it.
  uint64_t staged = 0;
  for (int i = 0; i < 1000; ++i) {
    if (choice.Next(KiB(4), MiB(8)) == Path::kStaged) {
      ++staged;
    } else {
      CHECK_FALSE(choice.Learn(Path::kDma, KiB(4), MiB(8), absl::Milliseconds(1)).has_value());
    }
  }
  CHECK(staged < 60);
  // The first that is staged takes a second, and doesn't count.
  PathChoice cold;
  for (int i = 0; i < 3; ++i) device.Batch(&cold, KiB(4));
  CHECK(cold.Next(KiB(4), MiB(8)) == Path::kStaged);
  CHECK_FALSE(cold.Learn(Path::kStaged, KiB(4), MiB(8), absl::Seconds(1)).has_value());
  for (int i = 0; i < 15; ++i) device.Batch(&cold, KiB(4));
  CHECK(device.found->path == Path::kStaged);
  // Sizes at the ends of all.
  CHECK(cold.Next(Bytes{}, MiB(8)) == Path::kDma);
  CHECK(cold.Next(Bytes{UINT64_MAX}, MiB(8)) == Path::kDma);
  CHECK(PathChoice({.below = Bytes{UINT64_MAX}}).Next(Bytes{UINT64_MAX - 1}, MiB(8)) == Path::kDma);
}

}  // namespace
}  // namespace kvist::cuda
