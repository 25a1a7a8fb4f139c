#ifndef KVIST_TESTS_BENCH_SLICES_H_
#define KVIST_TESTS_BENCH_SLICES_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvist::bench {

// What one slice of the product and its neighbour, one slice of the limit, measured.
struct Pair {
  double product = 0;
  double limit = 0;
  double ratio() const { return product / limit; }
};

// A slice: does some work, and says what it measured of it.
using Slice = std::function<absl::StatusOr<double>()>;

// Runs both alternately until `time` has passed, at least `pairs_min` times each. Which comes first changes from pair to pair, so that neither
// always follows the other. Errors: those of the slices.
absl::StatusOr<std::vector<Pair>> Alternate(absl::Duration time, const Slice& product, const Slice& limit,
                                            size_t pairs_min = 3);

// The pair in the middle, by its ratio or by its difference: noise that hits a pair moves both of its figures or makes it an outlier.
// product / limit of that pair *is* the median of the ratios. Of an even number of pairs the upper of the two middle ones. Not of none.
Pair MedianByRatio(std::vector<Pair> pairs);
Pair MedianByDifference(std::vector<Pair> pairs);

// The q-quantile (0.5 is the median) of some figures; not of none.
double Quantile(std::vector<double> figures, double q);

// Seconds on a clock that never jumps.
double Now();

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_SLICES_H_
