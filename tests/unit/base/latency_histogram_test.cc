#include "storage/base/latency_histogram.h"

#include <catch2/catch.hpp>
#include <random>

namespace kvist {
namespace {

TEST_CASE("LatencyHistogram puts every duration between the bounds of its bucket") {
  std::mt19937_64 random(Catch::rngSeed());
  const auto check = [](int64_t nanos) {
    const uint32_t bucket = LatencyHistogram::BucketOf(nanos);
    INFO(nanos << " ns in bucket " << bucket);
    REQUIRE(bucket < LatencyHistogram::kBuckets);
    CHECK(nanos <= LatencyHistogram::UpperNanos(bucket));
    if (bucket > 0) CHECK(nanos > LatencyHistogram::UpperNanos(bucket - 1));
  };
  for (const int64_t nanos : {int64_t{-5}, int64_t{0}, int64_t{1}, int64_t{128}, int64_t{129}, INT64_MAX}) check(nanos);
  for (uint32_t bucket = 0; bucket + 1 < LatencyHistogram::kBuckets; ++bucket) {
    check(LatencyHistogram::UpperNanos(bucket));
    check(LatencyHistogram::UpperNanos(bucket) + 1);
  }
  for (int i = 0; i < 1000; ++i) check(static_cast<int64_t>(random() >> (1 + random() % 63)));
}

TEST_CASE("LatencyHistogram's bounds are at most a quarter apart") {
  for (uint32_t bucket = 1; bucket + 1 < LatencyHistogram::kBuckets; ++bucket) {
    const int64_t below = LatencyHistogram::UpperNanos(bucket - 1);
    CHECK(LatencyHistogram::UpperNanos(bucket) > below);
    CHECK(LatencyHistogram::UpperNanos(bucket) <= below + below / 4);
  }
  CHECK(LatencyHistogram::UpperNanos(0) == 128);
  CHECK(LatencyHistogram::UpperNanos(LatencyHistogram::kBuckets - 2) == int64_t{1} << 37);
}

TEST_CASE("LatencyHistogram counts and sums what it was given") {
  LatencyHistogram histogram;
  histogram.Record(1000);
  histogram.Record(1000, 3);
  histogram.Record(-7);
  histogram.Record(int64_t{1} << 40);
  CHECK(histogram.count() == 6);
  CHECK(histogram.count(LatencyHistogram::BucketOf(1000)) == 4);
  CHECK(histogram.count(LatencyHistogram::kBuckets - 1) == 1);
  CHECK(histogram.sum_nanos() == 4000 + (uint64_t{1} << 40));
}

}  // namespace
}  // namespace kvist
