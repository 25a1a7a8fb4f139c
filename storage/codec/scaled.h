#ifndef KVIST_STORAGE_CODEC_SCALED_H_
#define KVIST_STORAGE_CODEC_SCALED_H_

#include <vector>

#include "storage/codec/matrix_coder.h"
#include "storage/codec/scale_grid.h"

namespace kvist::codec {

// int8 and fp8: a byte for each value, a step for each group (ScaleGrid).
//
//   | top, float | step codes [line][cell] | bytes [token][channel] |         value = byte * step, in int8 or e4m3; steps: StepTable(top)
//
// Error of a value: int8 at most half a step, fp8 at most a 16th of the value or half of 2^-9 steps, and the element's own rounding. The step is
//   at most 2^(1/8) * the group's largest magnitude / range, range 127 or 448, or top * 2^-(255/8) if that is more: of groups 32 octaves below
//   the matrix's largest and further nothing may be left. Groups with a step below 2^-126, so values below range * 2^-126, become 0.
class ScaledCoder final : public MatrixCoder {
 public:
  ScaledCoder(Method method, const Shape& shape, uint32_t group, const Kernels& kernels);
  static size_t Bound(const Shape& shape, uint32_t group);
  size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) override;
  bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) override;

 private:
  const Kernels& kernels_;
  const Shape shape_;
  const ScaleGrid keys_;
  const ScaleGrid others_;
  const float range_;  // of a byte
  decltype(Kernels::to_int8) const to_bytes_;
  decltype(Kernels::from_int8) const from_bytes_;
  decltype(Kernels::from_even_int8) const from_even_bytes_;
  std::vector<uint16_t> magnitudes_;  // [line][cell]
  std::vector<float> scales_;         // [channel]: a line's steps or their inverses
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_SCALED_H_
