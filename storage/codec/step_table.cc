#include "storage/codec/step_table.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <functional>

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
  // Descending: the first that is less is behind the last that will do.
  const auto less = std::partition_point(steps_.begin(), steps_.end(), [&](float step) { return step >= wanted; });
  return static_cast<uint8_t>(less == steps_.begin() ? 0 : less - steps_.begin() - 1);
}

uint8_t StepTable::AtMost(float wanted) const {
  const auto most = std::partition_point(steps_.begin(), steps_.end(), [&](float step) { return step > wanted; });
  return static_cast<uint8_t>(std::min<std::ptrdiff_t>(most - steps_.begin(), 255));
}

}  // namespace kvist::codec
