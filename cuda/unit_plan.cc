#include "cuda/unit_plan.h"

#include <algorithm>

namespace kvist::cuda {

UnitPlan::UnitPlan(uint32_t layers, uint64_t pieces_per_layer, uint64_t piece_bytes, uint64_t unit_bytes,
                   uint32_t layers_max)
    : layers_(layers), grains_(pieces_per_layer) {
  if (layers == 0) return;
  const uint64_t layer_bytes = std::max<uint64_t>(1, pieces_per_layer * piece_bytes);
  if (layer_bytes < unit_bytes) {
    // Layers are shared out evenly over the steps, so that the last unit is no crumb that costs as much to claim as the
    // others.
    const uint64_t fitting = std::min<uint64_t>({layers, layers_max, unit_bytes / layer_bytes});
    const uint64_t steps = (layers + fitting - 1) / fitting;
    layers_per_step_ = static_cast<uint32_t>((layers + steps - 1) / steps);
  } else {
    units_per_step_ = static_cast<uint32_t>(
        std::min<uint64_t>({(layer_bytes + unit_bytes / 2) / unit_bytes, pieces_per_layer, UINT32_MAX}));
  }
  steps_ = (layers + layers_per_step_ - 1) / layers_per_step_;
}

UnitPlan UnitPlan::ByChunk(uint32_t layers, uint64_t chunks, uint64_t pieces_per_chunk, uint64_t piece_bytes) {
  UnitPlan plan(0, chunks, 0);
  if (layers == 0 || chunks == 0) return plan;
  plan.layers_ = plan.layers_per_step_ = layers;
  plan.pieces_per_grain_ = pieces_per_chunk;
  const auto units_of = [](uint64_t bytes, uint64_t most) {
    return static_cast<uint32_t>(std::clamp<uint64_t>((bytes + kStreamedUnitBytes / 2) / kStreamedUnitBytes, 1,
                                                      std::min<uint64_t>(most, UINT32_MAX)));
  };
  const uint64_t chunk_bytes = pieces_per_chunk * piece_bytes * layers;
  plan.parts_ = units_of(chunk_bytes, layers);
  plan.units_per_step_ =
      plan.parts_ > 1 ? static_cast<uint32_t>(chunks) * plan.parts_ : units_of(chunks * chunk_bytes, chunks);
  return plan;
}

uint32_t UnitPlan::LayersAfter(uint32_t steps) const {
  return static_cast<uint32_t>(std::min<uint64_t>(layers_, uint64_t{steps} * layers_per_step_));
}

Unit UnitPlan::At(uint64_t unit) const {
  const uint32_t step = static_cast<uint32_t>(unit / units_per_step_);
  const uint64_t part = unit % units_per_step_;
  const auto pieces = [this](uint64_t number, uint64_t of) {
    return PieceRange{grains_ * number / of * pieces_per_grain_, grains_ * (number + 1) / of * pieces_per_grain_};
  };
  if (parts_ > 1) {
    const uint64_t of_chunk = part % parts_;
    const auto first = static_cast<uint32_t>(layers_ * of_chunk / parts_);
    return {step, first, static_cast<uint32_t>(layers_ * (of_chunk + 1) / parts_) - first, pieces(part / parts_, grains_)};
  }
  const uint32_t first_layer = LayersAfter(step);
  return {step, first_layer, LayersAfter(step + 1) - first_layer, pieces(part, units_per_step_)};
}

}  // namespace kvist::cuda
