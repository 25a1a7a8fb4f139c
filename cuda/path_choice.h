#ifndef KVIST_CUDA_PATH_CHOICE_H_
#define KVIST_CUDA_PATH_CHOICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// Which way a batch of pieces of some size goes: piece by piece by DMA, or staged (staged_path.h). Nobody says so beforehand: it is learned from
// the batches of the work itself, for each power of two by itself, so it holds for this GPU, this bus, this processor (handing an entry over takes
// it 0.4 to 0.8 us), and this engine beside it, whose kernels kvist's has to take turns with. The first batches of a size try both ways; later a
// few in `try_every` try the other one, so that it shows when the world has changed. Until both are known it is DMA.
//
// What is staged ends in bursts beside a busy engine, several batches in one turn. So it is judged by more batches than DMA, one after the other.
//
// Pure: no clock, no device. One object for each direction of a GPU. Threads: one.
class PathChoice {
 public:
  enum class Path : uint8_t { kDma, kStaged };
  struct Options {
    // Pieces from here on always go by DMA, which reaches the bus's speed for them (cuda/README.md); and leaves the multiprocessors alone.
    Bytes below = KiB(128);
    // Smaller batches take what the others have found, and teach nothing: they are all latency.
    Bytes batch_least = MiB(1);
    // Staging has to be so much faster, for it takes multiprocessors from the engine; and keeps its place down to `stays`.
    double worth = 1.25;
    double stays = 1.1;
    // A tenth of the speed on one batch of so many costs less than 4 %.
    uint32_t try_every = 256;
  };
  // Another way than before, or the first that was found.
  struct Found {
    Bytes piece;  // the least size that it is for; up to twice that
    Path path = Path::kDma;
    double dma_gb_per_second = 0, staged_gb_per_second = 0;
    bool again = false;  // another was found before
  };

  PathChoice() : PathChoice(Options{}) {}
  explicit PathChoice(Options options) : options_(options) {}

  // The way of the next batch, of so many bytes in pieces of that size on average.
  Path Next(Bytes piece, Bytes batch);
  // How long a batch took, of what the batches of its direction take together.
  std::optional<Found> Learn(Path path, Bytes piece, Bytes batch, absl::Duration took);

 private:
  struct Speed {
    uint32_t tried = 0;
    uint32_t learned = 0;
    // Of late: sums in which each batch weighs less than the one after it.
    double bytes = 0, nanos = 0;
  };
  struct SizeClass {
    std::array<Speed, 2> speeds;  // by Path
    Path path = Path::kDma;
    bool found = false;
    uint64_t turn = 0;
  };
  SizeClass& Of(Bytes piece);

  const Options options_;
  std::array<SizeClass, 32> classes_;  // by the size's power of two
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_PATH_CHOICE_H_
