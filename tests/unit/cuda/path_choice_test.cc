#include "cuda/path_choice.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>

namespace kvist::cuda {
namespace {

using Path = PathChoice::Path;

// A device with a speed for each way, in GB/s by the size of pieces; sends batches and tells how long they took.
struct Device {
  std::function<double(Bytes)> dma, kernel;
  std::map<Path, uint64_t> batches = {};
  std::optional<PathChoice::Found> found = {};

  Path Batch(PathChoice* choice, Bytes piece, Bytes batch = MiB(8)) {
    const Path path = choice->Next(piece, batch);
    ++batches[path];
    const double speed = (path == Path::kDma ? dma : kernel)(piece);
    if (auto now = choice->Learn(path, piece, batch, absl::Nanoseconds(static_cast<double>(batch.value) / speed)))
      found = now;
    return path;
  }
};

// 0.6 us an entry up to 55 GB/s, against 40 GB/s whatever the size: what others report (reference/limits.md).
Device Usual() {
  return {[](Bytes piece) { return std::min(55.0, static_cast<double>(piece.value) / 600); }, [](Bytes) { return 40.0; }};
}

TEST_CASE("PathChoice takes for each size the way that has been faster, and always DMA for large pieces") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 100; ++i) {
    for (const Bytes piece : {KiB(4), KiB(16), KiB(32), KiB(64), MiB(2)}) device.Batch(&choice, piece);
  }
  CHECK(choice.Next(KiB(4), MiB(8)) == Path::kKernel);        // 6.8 against 40
  CHECK(choice.Next(KiB(16), MiB(8)) == Path::kKernel);       // 27
  CHECK(choice.Next(Bytes{20000}, MiB(8)) == Path::kKernel);  // one class
  CHECK(choice.Next(KiB(32), MiB(8)) == Path::kDma);          // 55
  CHECK(choice.Next(KiB(64), MiB(8)) == Path::kDma);
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kDma);  // nothing is known of these yet
}

TEST_CASE("PathChoice spends few batches on the slower way, and says once what it has found") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 8; ++i) device.Batch(&choice, KiB(4));
  REQUIRE(device.found.has_value());
  CHECK(device.found->path == Path::kKernel);
  CHECK_FALSE(device.found->again);
  CHECK(device.found->piece == KiB(4));
  CHECK(device.found->kernel_gb_per_second == Approx(40).epsilon(0.01));
  CHECK(device.found->dma_gb_per_second == Approx(6.83).epsilon(0.01));
  device.found.reset();
  device.batches.clear();
  for (int i = 0; i < 25600; ++i) device.Batch(&choice, KiB(4));
  CHECK(device.batches[Path::kDma] == 100);
  CHECK_FALSE(device.found.has_value());
}

TEST_CASE("PathChoice changes its mind when the world has changed, and only then") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 300; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kKernel);
  // An engine works now, and the kernel waits for its turns.
  device.kernel = [](Bytes) { return 5.0; };
  for (int i = 0; i < 30; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kDma);
  // It has stopped: one try of the kernel isn't enough against what is known, some are.
  device.kernel = [](Bytes) { return 40.0; };
  for (int i = 0; i < 256 * 12; ++i) device.Batch(&choice, KiB(8));
  CHECK(choice.Next(KiB(8), MiB(8)) == Path::kKernel);
  // Between the two bounds nothing changes, from either side.
  for (const double factor : {1.15, 1.2}) {
    device.kernel = [&](Bytes piece) { return factor * device.dma(piece); };
    for (int i = 0; i < 3000; ++i) device.Batch(&choice, KiB(8));
    CHECK(choice.Next(KiB(8), MiB(8)) == Path::kKernel);
    PathChoice other;
    for (int i = 0; i < 3000; ++i) device.Batch(&other, KiB(8));
    CHECK(other.Next(KiB(8), MiB(8)) == Path::kDma);
  }
}

TEST_CASE("PathChoice learns nothing from small batches, from warming up, and from ways that always fail") {
  PathChoice choice;
  Device device = Usual();
  for (int i = 0; i < 1000; ++i) CHECK(device.Batch(&choice, KiB(4), KiB(512)) == Path::kDma);
  CHECK_FALSE(device.found.has_value());
  // Batches of the kernel all fail: nothing is learned of it.
  uint64_t kernels = 0;
  for (int i = 0; i < 1000; ++i) {
    if (choice.Next(KiB(4), MiB(8)) == Path::kKernel) {
      ++kernels;
    } else {
      CHECK_FALSE(choice.Learn(Path::kDma, KiB(4), MiB(8), absl::Milliseconds(1)).has_value());
    }
  }
  CHECK(kernels < 10);
  // The first of the kernel takes a second, and doesn't count.
  PathChoice cold;
  for (int i = 0; i < 4; ++i) device.Batch(&cold, KiB(4));
  CHECK(cold.Next(KiB(4), MiB(8)) == Path::kKernel);
  CHECK_FALSE(cold.Learn(Path::kKernel, KiB(4), MiB(8), absl::Seconds(1)).has_value());
  for (int i = 0; i < 3; ++i) device.Batch(&cold, KiB(4));
  CHECK(device.found->path == Path::kKernel);
  // Sizes at the ends of all.
  CHECK(cold.Next(Bytes{}, MiB(8)) == Path::kDma);
  CHECK(cold.Next(Bytes{UINT64_MAX}, MiB(8)) == Path::kDma);
  CHECK(PathChoice({.below = Bytes{UINT64_MAX}}).Next(Bytes{UINT64_MAX - 1}, MiB(8)) == Path::kDma);
}

}  // namespace
}  // namespace kvist::cuda
