#include "daemon/metrics/single_flight.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

namespace kvist::metrics {
namespace {

constexpr absl::Duration kHung = absl::Seconds(10);

TEST_CASE("SingleFlight asks once while nobody answers, and all who wait get that answer") {
  std::vector<SingleFlight<int>::Answer> asked;
  SingleFlight<int> question([&](SingleFlight<int>::Answer answer) { asked.push_back(std::move(answer)); });
  CHECK(absl::IsDeadlineExceeded(question.Get(MonotonicNow()).status()));
  for (int i = 0; i < 100; ++i) CHECK(absl::IsDeadlineExceeded(question.Get(MonotonicNow()).status()));
  REQUIRE(asked.size() == 1);
  std::vector<std::thread> waiting;
  std::vector<int> got(4, 0);
  for (int& mine : got) waiting.emplace_back([&] { mine = **question.Get(MonotonicNow() + kHung); });
  asked[0](42);
  // One that comes after the answer asks again.
  absl::Time deadline = MonotonicNow() + kHung;
  while (asked.size() == 1 && MonotonicNow() < deadline) (void)question.Get(MonotonicNow());
  CHECK(asked.size() >= 2);
  for (size_t i = 1; i < asked.size(); ++i) asked[i](42);
  for (std::thread& thread : waiting) thread.join();
  CHECK(got == std::vector<int>(4, 42));
}

TEST_CASE("SingleFlight asks anew after an answer") {
  int answer = 0;
  SingleFlight<int> question([&](const SingleFlight<int>::Answer& take) { take(++answer); });
  CHECK(**question.Get(MonotonicNow() + kHung) == 1);
  CHECK(**question.Get(MonotonicNow() + kHung) == 2);
}

}  // namespace
}  // namespace kvist::metrics
