#include "storage/base/clock.h"

#include <catch2/catch.hpp>
#include <ctime>

namespace kvist {
namespace {

TEST_CASE("MonotonicNow is CLOCK_MONOTONIC, in both forms") {
  timespec before;
  clock_gettime(CLOCK_MONOTONIC, &before);
  const int64_t nanos = MonotonicNanos();
  const absl::Time time = MonotonicNow();
  CHECK(nanos >= before.tv_sec * 1'000'000'000 + before.tv_nsec);
  CHECK(ToMonotonicNanos(time) >= nanos);
  CHECK(ToMonotonicNanos(FromMonotonicNanos(nanos) + absl::Nanoseconds(1)) == nanos + 1);
}

}  // namespace
}  // namespace kvist
