#include "storage/base/clock.h"

#include <ctime>

namespace kvist {

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

absl::Time MonotonicNow() { return FromMonotonicNanos(MonotonicNanos()); }

}  // namespace kvist
