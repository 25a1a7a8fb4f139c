#include "cuda/path_choice.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvist::cuda {
namespace {

// How a way is judged.
struct Trial {
  uint32_t batches;  // one after the other; at first one more, which warms up: a module is loaded, memory is pinned
  double keeps;      // of what is known, with each new batch
};
constexpr Trial TrialOf(PathChoice::Path path) { return path == PathChoice::Path::kDma ? Trial{1, 0.75} : Trial{8, 0.94}; }
// So often at first.
constexpr uint32_t kFirstTrials = 2;
constexpr uint32_t FirstTries(PathChoice::Path path) { return 1 + kFirstTrials * TrialOf(path).batches; }

}  // namespace

PathChoice::SizeClass& PathChoice::Of(Bytes piece) {
  const size_t power = static_cast<size_t>(std::bit_width(piece.value));
  return classes_[std::clamp<size_t>(power, 1, classes_.size()) - 1];
}

PathChoice::Path PathChoice::Next(Bytes piece, Bytes batch) {
  if (piece >= options_.below) return Path::kDma;
  SizeClass& of = Of(piece);
  if (batch < options_.batch_least) return of.path;
  for (const Path path : {Path::kDma, Path::kStaged}) {
    Speed& speed = of.speeds[static_cast<size_t>(path)];
    if (speed.tried == FirstTries(path)) continue;
    ++speed.tried;
    return path;
  }
  const Path other = of.path == Path::kDma ? Path::kStaged : Path::kDma;
  return of.turn++ % options_.try_every + TrialOf(other).batches >= options_.try_every ? other : of.path;
}

std::optional<PathChoice::Found> PathChoice::Learn(Path path, Bytes piece, Bytes batch, absl::Duration took) {
  if (piece >= options_.below || batch < options_.batch_least || took <= absl::ZeroDuration()) return std::nullopt;
  SizeClass& of = Of(piece);
  Speed& speed = of.speeds[static_cast<size_t>(path)];
  if (++speed.learned == 1) return std::nullopt;
  speed.learned = std::min(speed.learned, FirstTries(path));
  speed.bytes = TrialOf(path).keeps * speed.bytes + static_cast<double>(batch.value);
  speed.nanos = TrialOf(path).keeps * speed.nanos + absl::ToDoubleNanoseconds(took);

  const Speed& dma = of.speeds[static_cast<size_t>(Path::kDma)];
  const Speed& staged = of.speeds[static_cast<size_t>(Path::kStaged)];
  const auto known = [](const Speed& of_way, Path way) { return of_way.learned > TrialOf(way).batches; };
  if (!known(dma, Path::kDma) || !known(staged, Path::kStaged)) return std::nullopt;
  const double by_dma = dma.bytes / dma.nanos, by_staging = staged.bytes / staged.nanos;  // GB/s
  const double wanted = of.path == Path::kStaged ? options_.stays : options_.worth;
  const Path best = by_staging >= wanted * by_dma ? Path::kStaged : Path::kDma;
  if (of.found && best == of.path) return std::nullopt;
  of.path = best;
  return Found{Bytes{std::bit_floor(piece.value)}, best, by_dma, by_staging, std::exchange(of.found, true)};
}

}  // namespace kvist::cuda
