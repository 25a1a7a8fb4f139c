#include "daemon/tier_busy.h"

#include <catch2/catch.hpp>

namespace kvist::daemon {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
absl::Time At(int64_t us) { return kStart + absl::Microseconds(us); }

TEST_CASE("TierBusy tells of a stretch without a pause when it ends") {
  TierBusy busy(core::Tier::kSsd);
  busy.Begin(1, KiB(4), At(0));
  busy.Begin(2, KiB(8), At(10));
  CHECK_FALSE(busy.End(1, true, At(50)).has_value());
  const auto told = busy.End(2, true, At(70));
  REQUIRE(told.has_value());
  CHECK(told->bytes == KiB(12));
  CHECK(told->from_rest);
  CHECK(told->took == absl::Microseconds(70));
  // A pause is nobody's time.
  busy.Begin(3, KiB(4), At(1000));
  const auto next = busy.End(3, true, At(1020));
  REQUIRE(next.has_value());
  CHECK(next->bytes == KiB(4));
  CHECK(next->took == absl::Microseconds(20));
}

TEST_CASE("TierBusy tells of a long stretch in parts, of which only the first has a beginning") {
  TierBusy busy(core::Tier::kSsd);
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) busy.Begin(ticket, KiB(4), At(0));
  CHECK_FALSE(busy.End(1, true, At(1000)).has_value());
  const auto first = busy.End(2, true, At(100'000));
  REQUIRE(first.has_value());
  CHECK(first->bytes == KiB(8));
  CHECK(first->from_rest);
  const auto rest = busy.End(3, true, At(130'000));
  REQUIRE(rest.has_value());
  CHECK(rest->bytes == KiB(4));
  CHECK_FALSE(rest->from_rest);
  CHECK(rest->took == absl::Milliseconds(30));
}

TEST_CASE("TierBusy tells nothing of a stretch in which a read failed, nor of what it doesn't know") {
  TierBusy busy(core::Tier::kSsd);
  CHECK_FALSE(busy.End(7, true, At(0)).has_value());
  busy.Begin(1, KiB(4), At(0));
  busy.Begin(2, KiB(4), At(0));
  CHECK_FALSE(busy.End(1, false, At(10)).has_value());
  CHECK_FALSE(busy.End(2, true, At(20)).has_value());
  busy.Begin(3, KiB(4), At(30));
  CHECK(busy.End(3, true, At(40)).has_value());
}

}  // namespace
}  // namespace kvist::daemon
