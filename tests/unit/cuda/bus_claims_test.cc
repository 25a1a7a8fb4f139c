#include "cuda/bus_claims.h"

#include <catch2/catch.hpp>

namespace kvist::cuda {
namespace {

struct Said final : BusClaim {
  int64_t UntilNanos() const override { return until; }
  int64_t until = 0;
};

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStart = 5'000 * kMs;

TEST_CASE("BusClaims holds stores back while any engine claims the bus") {
  BusClaims claims;
  CHECK(claims.StoresWait(kStart) == absl::ZeroDuration());
  const auto a = std::make_shared<Said>();
  auto b = std::make_shared<Said>();
  for (int i = 0; i < 3; ++i) {  // with each copy again
    claims.Add(a);
    claims.Add(b);
  }
  CHECK(claims.StoresWait(kStart) == absl::ZeroDuration());
  a->until = kStart + 5 * kMs;
  b->until = kStart + 20 * kMs;
  CHECK(claims.StoresWait(kStart) == absl::Milliseconds(20));
  CHECK(claims.StoresWait(kStart + 15 * kMs) == absl::Milliseconds(5));
  CHECK(claims.StoresWait(kStart + 20 * kMs) == absl::ZeroDuration());
  b->until = kStart + 90 * kMs;
  CHECK(claims.StoresWait(kStart + 30 * kMs) == absl::Milliseconds(60));
  b.reset();  // it is gone, and its claim with it
  CHECK(claims.StoresWait(kStart + 31 * kMs) == absl::ZeroDuration());
}

TEST_CASE("BusClaims gives stores a turn as long as they were held back, however long the bus is claimed") {
  BusClaims claims;
  const auto greedy = std::make_shared<Said>();
  claims.Add(greedy);
  greedy->until = INT64_MAX;
  CHECK(claims.StoresWait(kStart) == BusClaims::kMost);
  CHECK(claims.StoresWait(kStart + 60 * kMs) == absl::Milliseconds(40));
  CHECK(claims.StoresWait(kStart + 100 * kMs) == absl::ZeroDuration());
  CHECK(claims.StoresWait(kStart + 199 * kMs) == absl::ZeroDuration());
  CHECK(claims.StoresWait(kStart + 201 * kMs) == BusClaims::kMost);
  greedy->until = 0;
  CHECK(claims.StoresWait(kStart + 202 * kMs) == absl::ZeroDuration());
  greedy->until = kStart + 2'005 * kMs;
  CHECK(claims.StoresWait(kStart + 2'002 * kMs) == absl::Milliseconds(3));
  greedy->until = -1;
  CHECK(claims.StoresWait(kStart + 2'003 * kMs) == absl::ZeroDuration());
  // Nobody asked between the end of one claim and the begin of the next: they are two all the same.
  greedy->until = kStart + 20'000 * kMs;
  CHECK(claims.StoresWait(kStart + 19'990 * kMs) == absl::Milliseconds(10));
  greedy->until = kStart + 31'000 * kMs;
  CHECK(claims.StoresWait(kStart + 30'000 * kMs) == BusClaims::kMost);
}

// Claims again and again, each before the last one's end or a moment behind it; looks at each end that it was told. How much of the time
// stores had the bus.
double ShareOfStores(int64_t claim_ms, int64_t every_ms) {
  BusClaims claims;
  const auto engine = std::make_shared<Said>();
  claims.Add(engine);
  int64_t free = 0, now = kStart;
  constexpr int64_t kEnd = kStart + 10'000 * kMs;
  while (now < kEnd) {
    engine->until = kStart + (now - kStart) / (every_ms * kMs) * every_ms * kMs + claim_ms * kMs;
    const int64_t wait = absl::ToInt64Nanoseconds(claims.StoresWait(now));
    if (wait == 0) free += kMs;
    now += wait > 0 ? wait : kMs;
  }
  return static_cast<double>(free) / static_cast<double>(kEnd - kStart);
}

TEST_CASE("BusClaims leaves stores half the time when an engine claims the bus anew before each claim ends, or just after") {
  CHECK(ShareOfStores(50, 45) == Approx(0.5).margin(0.06));
  CHECK(ShareOfStores(1000, 1) == Approx(0.5).margin(0.06));
  CHECK(ShareOfStores(95, 100) > 0.4);
  CHECK(ShareOfStores(5, 100) > 0.9);  // and hardly takes any where it claims little
}

}  // namespace
}  // namespace kvist::cuda
