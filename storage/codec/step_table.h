#ifndef KVIST_STORAGE_CODEC_STEP_TABLE_H_
#define KVIST_STORAGE_CODEC_STEP_TABLE_H_

#include <array>
#include <cstdint>

namespace kvist::codec {

// The steps that a matrix's scales choose from by a byte: from the largest, `top`, downwards by eighths of an octave, to 2^-(255/8) of it.
//
// A scale of 16 bits would cost twice as much, and with half as many scales the error is larger than the 4 % that a coarser step adds.
// The same bits on every machine: constants and powers of two, multiplied.
class StepTable {
 public:
  // `top`: finite, not negative. 0: all steps are 0, for matrices without anything.
  explicit StepTable(float top);
  static bool IsTop(float top);  // whether it is one, for bytes that somebody else wrote

  float top() const { return steps_[0]; }
  float step(uint8_t code) const { return steps_[code]; }
  // By what values are multiplied. 0 for steps below 2^-126, where 1 / step may be none: all values of such a step become 0.
  float inverse(uint8_t code) const { return inverses_[code]; }

  // The code of the smallest step that is at least `wanted`; 0 when none is. / Of the largest that is at most `wanted`; 255 when none is.
  uint8_t AtLeast(float wanted) const;
  uint8_t AtMost(float wanted) const;

 private:
  std::array<float, 256> steps_;
  std::array<float, 256> inverses_;
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_STEP_TABLE_H_
