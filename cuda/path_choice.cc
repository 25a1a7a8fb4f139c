#include "cuda/path_choice.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvist::cuda {
namespace {

// Batches that each way gets at first; one for warming up, and the best of the others counts, for whatever else happened then only slows.
constexpr uint32_t kFirstTries = 4;
constexpr double kWeightOfNew = 0.25;
constexpr double kOutlier = 1.5;

}  // namespace

PathChoice::SizeClass& PathChoice::Of(Bytes piece) {
  const size_t power = static_cast<size_t>(std::bit_width(piece.value));
  return classes_[std::clamp<size_t>(power, 1, classes_.size()) - 1];
}

PathChoice::Path PathChoice::Next(Bytes piece, Bytes batch) {
  if (piece >= options_.below) return Path::kDma;
  SizeClass& of = Of(piece);
  if (batch < options_.batch_least) return of.path;
  for (const Path path : {Path::kDma, Path::kKernel}) {
    Speed& speed = of.speeds[static_cast<size_t>(path)];
    if (speed.tried == kFirstTries) continue;
    ++speed.tried;
    return path;
  }
  if (++of.turn % options_.try_every != 0) return of.path;
  return of.path == Path::kDma ? Path::kKernel : Path::kDma;
}

std::optional<PathChoice::Found> PathChoice::Learn(Path path, Bytes piece, Bytes batch, absl::Duration took) {
  if (piece >= options_.below || batch < options_.batch_least || took <= absl::ZeroDuration()) return std::nullopt;
  SizeClass& of = Of(piece);
  Speed& speed = of.speeds[static_cast<size_t>(path)];
  const double now = absl::ToDoubleNanoseconds(took) / static_cast<double>(batch.value);
  speed.learned = std::min(speed.learned + 1, kFirstTries + 1);
  if (speed.learned <= 2) {
    speed.nanos_per_byte = now;
  } else if (speed.learned <= kFirstTries) {
    speed.nanos_per_byte = std::min(speed.nanos_per_byte, now);
  } else {
    // Whoever measured may have been late by much.
    const double known = speed.nanos_per_byte;
    speed.nanos_per_byte += kWeightOfNew * (std::clamp(now, known / kOutlier, known * kOutlier) - known);
  }

  const Speed& dma = of.speeds[static_cast<size_t>(Path::kDma)];
  const Speed& kernel = of.speeds[static_cast<size_t>(Path::kKernel)];
  if (!dma.known() || !kernel.known()) return std::nullopt;
  const double times = dma.nanos_per_byte / kernel.nanos_per_byte;
  const Path best = times >= (of.path == Path::kKernel ? options_.stays : options_.worth) ? Path::kKernel : Path::kDma;
  if (of.found && best == of.path) return std::nullopt;
  of.path = best;
  return Found{Bytes{std::bit_floor(piece.value)}, best, 1 / dma.nanos_per_byte, 1 / kernel.nanos_per_byte,
               std::exchange(of.found, true)};
}

}  // namespace kvist::cuda
