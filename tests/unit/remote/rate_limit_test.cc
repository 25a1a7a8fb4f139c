#include "storage/remote/rate_limit.h"

#include <catch2/catch.hpp>

namespace kvist::remote {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST_CASE("RateLimit lets a burst go at once, then so much a second") {
  RateLimit limit({Bytes{1000}, Bytes{500}}, kStart);
  CHECK(limit.Take({500}, kStart));
  CHECK(!limit.Take({1}, kStart));
  CHECK(!limit.Take({100}, kStart + absl::Milliseconds(99)));
  CHECK(limit.Take({100}, kStart + absl::Milliseconds(101)));
  // Never more than the burst, however long nothing was taken.
  CHECK(limit.Take({500}, kStart + absl::Hours(1)));
  CHECK(!limit.Take({1}, kStart + absl::Hours(1)));
}

TEST_CASE("RateLimit lets what is larger than the burst go from a full bucket, and has it paid for") {
  RateLimit limit({Bytes{1000}, Bytes{500}}, kStart);
  CHECK(limit.Take({2500}, kStart));
  CHECK(!limit.Take({1}, kStart + absl::Milliseconds(1990)));
  CHECK(limit.Take({1}, kStart + absl::Milliseconds(2010)));
  const absl::Time full = limit.When({2500}, kStart + absl::Milliseconds(2010));
  CHECK(!limit.Take({2500}, full - absl::Milliseconds(1)));
  CHECK(limit.Take({2500}, full));
}

TEST_CASE("RateLimit says when, and keeps to it over a long run") {
  RateLimit limit({MiB(1), KiB(64)}, kStart);
  absl::Time now = kStart;
  uint64_t taken = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const Bytes bytes{1 + i * 7919 % 200'000};
    now = limit.When(bytes, now);
    REQUIRE(limit.Take(bytes, now));
    taken += bytes.value;
  }
  const double rate = static_cast<double>(taken) / absl::ToDoubleSeconds(now - kStart);
  CHECK(rate == Approx(static_cast<double>(MiB(1).value)).epsilon(0.01));
}

TEST_CASE("RateLimit of nothing limits nothing, and time that goes backwards earns nothing") {
  RateLimit none({}, kStart);
  CHECK(none.Take(GiB(100), kStart));
  CHECK(none.When(GiB(100), kStart) == kStart);
  RateLimit limit({Bytes{1000}, Bytes{500}}, kStart);
  CHECK(limit.Take({500}, kStart));
  CHECK(!limit.Take({100}, kStart - absl::Hours(1)));
}

}  // namespace
}  // namespace kvist::remote
