#ifndef KVIST_CUDA_UNIT_PLAN_H_
#define KVIST_CUDA_UNIT_PLAN_H_

#include <cstdint>

#include "cuda/extents.h"

namespace kvist::cuda {

// A part of a copy that one thread does in one go; layers count from the copy's first.
struct Unit {
  uint32_t step = 0;
  uint32_t first_layer = 0;
  uint32_t layer_count = 0;
  PieceRange pieces;  // of each of these layers
};

// How a copy is split into units. Layer-major: a step is one layer, or several neighbouring small ones; its units are ranges
// of pieces. When a step's units are done, and those of the steps before it, so are its layers.
//
//   large layers:  step 0 = layer 0     | unit 0 | unit 1 | unit 2 |     small ones:  step 0 = layers 0..7   | unit 0 |
//                  step 1 = layer 1     | unit 3 | unit 4 | unit 5 |                  step 1 = layers 8..15  | unit 1 |
//
// What is still being read, or written by an engine, has smaller units: what has come is copied while the rest comes. Layer by layer it has a step
// for each layer; by chunk one step of all layers, whose units are neighbouring whole chunks, or parts of the layers of one large chunk.
//
// Even an empty copy has a unit, so that each copy ends the same way.
class UnitPlan {
 public:
  // What a unit aims at: large enough that claiming it and being late at the end cost little (about 100 us of copying),
  // small enough for a load or a cancel to get its turn soon; and a copy of one small chunk stays with one thread (waking
  // one takes 30 to 50 us).
  static constexpr uint64_t kUnitBytes = uint64_t{2} << 20;

  // Of what is still coming: what is copied last, when all has come, takes a quarter of that.
  static constexpr uint64_t kStreamedUnitBytes = uint64_t{512} << 10;

  UnitPlan(uint32_t layers, uint64_t pieces_per_layer, uint64_t piece_bytes)
      : UnitPlan(layers, pieces_per_layer, piece_bytes, kUnitBytes, UINT32_MAX) {}
  static UnitPlan Streamed(uint32_t layers, uint64_t pieces_per_layer, uint64_t piece_bytes) {
    return UnitPlan(layers, pieces_per_layer, piece_bytes, kStreamedUnitBytes, 1);
  }
  static UnitPlan ByChunk(uint32_t layers, uint64_t chunks, uint64_t pieces_per_chunk, uint64_t piece_bytes);

  uint32_t steps() const { return steps_; }
  uint32_t units_per_step() const { return units_per_step_; }
  uint64_t units() const { return uint64_t{steps_} * units_per_step_; }
  // Layers that are done when the first `steps` steps are.
  uint32_t LayersAfter(uint32_t steps) const;
  // Units [k * run(), (k + 1) * run()) are parts of the same chunk, in the order of their layers.
  uint32_t run() const { return parts_; }
  Unit At(uint64_t unit) const;

 private:
  // `layers_max`: of a step.
  UnitPlan(uint32_t layers, uint64_t pieces_per_layer, uint64_t piece_bytes, uint64_t unit_bytes, uint32_t layers_max);

  uint32_t layers_;
  uint64_t grains_;  // of a layer: a unit has whole ones
  uint64_t pieces_per_grain_ = 1;
  uint32_t steps_ = 1;
  uint32_t layers_per_step_ = 1;
  uint32_t units_per_step_ = 1;
  uint32_t parts_ = 1;  // by chunk: units of one chunk
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_UNIT_PLAN_H_
