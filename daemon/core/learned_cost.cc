#include "daemon/core/learned_cost.h"

#include <algorithm>
#include <cmath>

namespace kvist::core {
namespace {

// Where the two amounts have grown together so closely, what each of them costs would be noise.
constexpr double kApart = 1e-3;

}  // namespace

void LearnedCost::Learn(double x, double y, double cost) {
  const bool sane = x >= 0 && y >= 0 && x + y > 0 && cost > 0 && std::isfinite(x + y) && std::isfinite(cost);
  if (!sane) return;
  last_[learned_++ % kKept] = {x / cost, y / cost};
  Solve();
}

void LearnedCost::Solve() {
  double xx = 0, xy = 0, yy = 0, x = 0, y = 0;
  for (uint64_t i = 0; i < std::min<uint64_t>(learned_, kKept); ++i) {
    const Measured& m = last_[i];
    xx += m.x * m.x;
    xy += m.x * m.y;
    yy += m.y * m.y;
    x += m.x;
    y += m.y;
  }
  const double apart = xx * yy - xy * xy;
  const bool both = apart > kApart * xx * yy;
  const double a = both ? (x * yy - y * xy) / apart : 0;
  const double b = both ? (y * xx - x * xy) / apart : 0;
  const bool only_y = xx == 0 || (both && a < 0);
  if (both && a >= 0 && b >= 0) {
    a_ = a;
    b_ = b;
  } else {
    a_ = only_y ? 0 : x / xx;
    b_ = only_y ? y / yy : 0;
  }
}

}  // namespace kvist::core
