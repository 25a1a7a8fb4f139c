#include "storage/codec/step_table.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>

#include "storage/codec/floats.h"

namespace kvist::codec {
namespace {

// 2^(-k/8).
constexpr float kEighths[8] = {1.0F,         0.917004043F, 0.840896415F, 0.771105413F,
                               0.707106781F, 0.648419777F, 0.594603558F, 0.545253866F};

}  // namespace

StepTable::StepTable(float top) {
  for (int code = 0; code < 256; ++code) {
    const float step = std::ldexp(top * kEighths[code % 8], -(code / 8));
    steps_[static_cast<size_t>(code)] = step;
    inverses_[static_cast<size_t>(code)] = step >= FLT_MIN ? 1.0F / step : 0.0F;
  }
}

bool StepTable::IsTop(float top) { return std::isfinite(top) && top >= 0 && !std::signbit(top); }

uint8_t StepTable::AtLeast(float wanted) const {
  // The bits of floats rise nearly as their logarithms do, 2^20 an eighth of an octave: from there it is a step or two. A search by halves
  // was a quarter of the time that int8 took to encode.
  const int64_t eighths = (int64_t{BitsOf(steps_[0])} - BitsOf(wanted)) >> 20;
  auto code = static_cast<size_t>(std::clamp<int64_t>(eighths, 0, 255));
  while (code < 255 && steps_[code + 1] >= wanted) ++code;
  while (code > 0 && steps_[code] < wanted) --code;
  return static_cast<uint8_t>(code);
}

uint8_t StepTable::AtMost(float wanted) const {
  const auto most = std::partition_point(steps_.begin(), steps_.end(), [&](float step) { return step > wanted; });
  return static_cast<uint8_t>(std::min<std::ptrdiff_t>(most - steps_.begin(), 255));
}

}  // namespace kvist::codec
