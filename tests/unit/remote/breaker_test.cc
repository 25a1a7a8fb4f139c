#include "storage/remote/breaker.h"

#include <catch2/catch.hpp>
#include <random>

namespace kvist::remote {
namespace {

using State = Breaker::State;

absl::Time At(int64_t ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

Breaker Opened() {
  Breaker breaker({3, absl::Seconds(1), absl::Seconds(4)});
  for (int i = 0; i < 3; ++i) breaker.Failed(*breaker.Allow(At(0)), At(0));
  return breaker;
}

TEST_CASE("Breaker opens after failures in a row, and not before") {
  Breaker breaker({3, absl::Seconds(1), absl::Seconds(4)});
  for (int i = 0; i < 10; ++i) {
    breaker.Failed(*breaker.Allow(At(0)), At(0));
    breaker.Failed(*breaker.Allow(At(0)), At(0));
    breaker.Succeeded(*breaker.Allow(At(0)));
  }
  CHECK(breaker.state() == State::kClosed);
  for (int i = 0; i < 3; ++i) breaker.Failed(*breaker.Allow(At(0)), At(0));
  CHECK(breaker.state() == State::kOpen);
  CHECK(breaker.opened() == 1);
  CHECK(!breaker.Allow(At(999)).has_value());
}

TEST_CASE("Breaker lets one probe through when it is half open") {
  Breaker breaker = Opened();
  const auto probe = breaker.Allow(At(1000));
  REQUIRE(probe.has_value());
  CHECK(breaker.state() == State::kHalfOpen);
  CHECK(!breaker.Allow(At(1000)).has_value());
  CHECK(!breaker.Allow(At(100'000)).has_value());
  SECTION("and closes when it is answered") {
    breaker.Succeeded(*probe);
    CHECK(breaker.state() == State::kClosed);
    CHECK(breaker.Allow(At(1001)).has_value());
  }
  SECTION("and another one when that was never asked") {
    breaker.Unused(*probe);
    CHECK(breaker.Allow(At(1001)).has_value());
  }
}

TEST_CASE("Breaker doubles its pause up to a bound while probes fail, and begins anew after one that doesn't") {
  Breaker breaker = Opened();
  int64_t now = 0;
  for (const int64_t pause : {1000, 2000, 4000, 4000, 4000}) {
    CHECK(!breaker.Allow(At(now + pause - 1)).has_value());
    now += pause;
    const auto probe = breaker.Allow(At(now));
    REQUIRE(probe.has_value());
    breaker.Failed(*probe, At(now));
  }
  breaker.Succeeded(*breaker.Allow(At(now + 4000)));
  for (int i = 0; i < 3; ++i) breaker.Failed(*breaker.Allow(At(now)), At(now));
  CHECK(breaker.probe_at() == At(now + 1000));
}

TEST_CASE("Breaker hears nothing of what was asked before its last change") {
  Breaker breaker({1, absl::Seconds(1), absl::Seconds(4)});
  const auto old = breaker.Allow(At(0));
  const auto other = breaker.Allow(At(0));
  breaker.Failed(*old, At(0));
  breaker.Succeeded(*other);
  CHECK(breaker.state() == State::kOpen);
  breaker.Failed(*other, At(10));
  CHECK(breaker.probe_at() == At(1000));
  const auto probe = breaker.Allow(At(1000));
  breaker.Succeeded(*other);
  breaker.Unused(*other);
  CHECK(!breaker.Allow(At(1000)).has_value());
  CHECK(breaker.state() == State::kHalfOpen);
  breaker.Succeeded(*probe);
  CHECK(breaker.state() == State::kClosed);
}

TEST_CASE("Breaker never has two probes and never stays shut, whatever happens") {
  const auto seed = GENERATE(1, 2, 3, 4, 5);
  std::mt19937 chance(static_cast<uint32_t>(seed));
  Breaker breaker({2, absl::Milliseconds(10), absl::Milliseconds(40)});
  std::vector<std::pair<Breaker::Ticket, bool>> tickets;  // and whether it is a probe's
  int64_t now = 0;
  for (int step = 0; step < 20'000; ++step) {
    now += chance() % 5;
    if (const auto ticket = breaker.Allow(At(now)); ticket.has_value()) {
      const bool probe = breaker.state() == State::kHalfOpen;
      if (probe) CHECK(std::none_of(tickets.begin(), tickets.end(), [](const auto& one) { return one.second; }));
      tickets.emplace_back(*ticket, probe);
    } else {
      CHECK(breaker.state() != State::kClosed);
    }
    while (!tickets.empty() && chance() % 2 == 0) {
      const size_t i = chance() % tickets.size();
      const auto [ticket, probe] = tickets[i];
      tickets.erase(tickets.begin() + static_cast<ptrdiff_t>(i));
      switch (chance() % 3) {
        case 0: breaker.Succeeded(ticket); break;
        case 1: breaker.Failed(ticket, At(now)); break;
        default: breaker.Unused(ticket);
      }
    }
  }
  for (const auto& [ticket, probe] : tickets) breaker.Unused(ticket);
  CHECK(breaker.Allow(At(now + 40)).has_value());
}

}  // namespace
}  // namespace kvist::remote
