#include "daemon/metrics/single_flight.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

namespace kvist::metrics {
namespace {

constexpr absl::Duration kHung = absl::Seconds(10);

TEST_CASE("SingleFlight asks once while nobody answers, and all who wait get that answer") {
  std::atomic<int> asked{0};
  SingleFlight<int>::Answer first;
  SingleFlight<int> question([&](SingleFlight<int>::Answer answer) {
    if (asked.fetch_add(1) == 0) {
      first = std::move(answer);
    } else {
      answer(42);  // to a thread that came after the first answer
    }
  });
  for (int i = 0; i < 100; ++i) CHECK(absl::IsDeadlineExceeded(question.Get(MonotonicNow()).status()));
  REQUIRE(asked == 1);
  std::vector<std::thread> waiting;
  std::vector<int> got(4, 0);
  for (int& mine : got) {
    waiting.emplace_back([&] {
      const auto answer = question.Get(MonotonicNow() + kHung);
      if (answer.ok()) mine = **answer;
    });
  }
  first(42);
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
