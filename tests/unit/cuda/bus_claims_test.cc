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

TEST_CASE("BusClaims lets stores go on after a while, however long the bus is claimed, until it was free once") {
  BusClaims claims;
  const auto greedy = std::make_shared<Said>();
  claims.Add(greedy);
  greedy->until = INT64_MAX;
  CHECK(claims.StoresWait(kStart) == BusClaims::kMost);
  CHECK(claims.StoresWait(kStart + 60 * kMs) == absl::Milliseconds(40));
  CHECK(claims.StoresWait(kStart + 100 * kMs) == absl::ZeroDuration());
  CHECK(claims.StoresWait(kStart + 10'000 * kMs) == absl::ZeroDuration());
  greedy->until = 0;
  CHECK(claims.StoresWait(kStart + 10'001 * kMs) == absl::ZeroDuration());
  greedy->until = kStart + 10'005 * kMs;
  CHECK(claims.StoresWait(kStart + 10'002 * kMs) == absl::Milliseconds(3));
  // Nobody asked between the end of one claim and the begin of the next: they are two all the same.
  greedy->until = kStart + 20'000 * kMs;
  CHECK(claims.StoresWait(kStart + 19'990 * kMs) == absl::Milliseconds(10));
  greedy->until = kStart + 31'000 * kMs;
  CHECK(claims.StoresWait(kStart + 30'000 * kMs) == BusClaims::kMost);
  greedy->until = -1;
  CHECK(claims.StoresWait(kStart + 30'001 * kMs) == absl::ZeroDuration());
}

}  // namespace
}  // namespace kvist::cuda
