#ifndef KVIST_STORAGE_CODEC_INT4_H_
#define KVIST_STORAGE_CODEC_INT4_H_

#include <vector>

#include "storage/codec/matrix_coder.h"
#include "storage/codec/scale_grid.h"

namespace kvist::codec {

// Four bits for each value, a step and a zero point for each group (ScaleGrid), and the worst outliers as they were.
//
//   | top, float | outliers, u32 | step codes [line][cell] | zeros, int8 [line][cell] | packed [token][(channels + 1) / 2]
//   | positions of outliers, u32, ascending | outliers, u16 |                    position = token * channels + channel
//
//   value = (4 bits + zero) * step; steps: StepTable(top). Zero is a value that can be said where the group's range has it.
//
// Error of a value: at most half a step and the element's own rounding; step at most 2^(1/8) times a 15th of the group's range, or a 126th of its
//   largest magnitude if that is more, or top * 2^-(255/8) if that is still more. Groups with a step below 2^-126, so values below
//   126 * 2^-126, become 0. Of the groups with the widest ranges those that shrink most without their most distant value have that
//   kept exact, as many groups as Parameters::outliers allows.
class Int4Coder final : public MatrixCoder {
 public:
  Int4Coder(const Shape& shape, const Parameters& parameters, const Kernels& kernels);
  static size_t Bound(const Shape& shape, const Parameters& parameters);
  size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) override;
  bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) override;

 private:
  // The smallest and the largest of a group, as integers in the values' order.
  struct Ends {
    int16_t low, high;
  };
  struct Gain {
    double gained;
    size_t group;
    Ends without;       // its ends, without
    uint32_t position;  // the value there
  };

  float ValueOf(int16_t ordered) const;
  void FindEnds(const ScaleGrid& grid, bool key, const RawValue* rows);
  void TakeOutliers(const ScaleGrid& grid, const RawValue* rows);
  void KeepLargest(size_t count);
  Gain GainOf(const ScaleGrid& grid, const RawValue* rows, size_t group) const;
  float WantedStep(const Ends& ends) const;

  const Kernels& kernels_;
  const Shape shape_;
  const ScaleGrid keys_;
  const ScaleGrid others_;
  const size_t outliers_max_;
  std::vector<Ends> ends_;  // [line][cell]
  std::vector<Gain> gains_;
  std::vector<uint32_t> outliers_;   // positions
  std::vector<int16_t> low_, high_;  // [channel], of a line
  std::vector<float> scales_;        // [channel]: a line's steps or their inverses
  std::vector<int8_t> zeros_;        // [channel]
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_INT4_H_
