#include "tests/bench/slices.h"

#include <algorithm>
#include <utility>

#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::bench {
namespace {

template <class By>
Pair Middle(std::vector<Pair> pairs, By by) {
  KVIST_CHECK(!pairs.empty());
  const auto middle = pairs.begin() + static_cast<ptrdiff_t>(pairs.size() / 2);
  std::nth_element(pairs.begin(), middle, pairs.end(), [&](const Pair& a, const Pair& b) { return by(a) < by(b); });
  return *middle;
}

}  // namespace

absl::StatusOr<std::vector<Pair>> Alternate(absl::Duration time, const Slice& product, const Slice& limit,
                                            size_t pairs_min) {
  std::vector<Pair> pairs;
  const double end = Now() + absl::ToDoubleSeconds(time);
  while (pairs.size() < pairs_min || Now() < end) {
    Pair pair;
    const bool limit_first = pairs.size() % 2 == 1;
    if (limit_first) { KVIST_ASSIGN_OR_RETURN(pair.limit, limit()); }
    KVIST_ASSIGN_OR_RETURN(pair.product, product());
    if (!limit_first) { KVIST_ASSIGN_OR_RETURN(pair.limit, limit()); }
    pairs.push_back(pair);
  }
  return pairs;
}

Pair MedianByRatio(std::vector<Pair> pairs) {
  return Middle(std::move(pairs), [](const Pair& pair) { return pair.ratio(); });
}

Pair MedianByDifference(std::vector<Pair> pairs) {
  return Middle(std::move(pairs), [](const Pair& pair) { return pair.product - pair.limit; });
}

double Quantile(std::vector<double> figures, double q) {
  KVIST_CHECK(!figures.empty());
  const auto at = figures.begin() + std::min<ptrdiff_t>(static_cast<ptrdiff_t>(q * static_cast<double>(figures.size())),
                                                        static_cast<ptrdiff_t>(figures.size()) - 1);
  std::nth_element(figures.begin(), at, figures.end());
  return *at;
}

double Now() { return static_cast<double>(MonotonicNanos()) * 1e-9; }

}  // namespace kvist::bench
