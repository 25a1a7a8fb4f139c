#ifndef KVIST_TESTS_SUPPORT_SCHEDULERS_LATENESS_H_
#define KVIST_TESTS_SUPPORT_SCHEDULERS_LATENESS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/support/working_engine.h"

namespace kvist::test {

// How late the scheduler is on this machine now: a thread that wants to run every millisecond, and what it had to wait for beyond.
class SchedulersLateness {
 public:
  SchedulersLateness() : thread_([this] { Watch(); }) {}
  ~SchedulersLateness() {
    stop_ = true;
    thread_.join();
  }
  int64_t longest_us() const { return longest_us_; }

 private:
  void Watch() {
    while (!stop_) {
      const auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
      std::this_thread::sleep_until(due);
      const auto late =
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - due).count();
      longest_us_ = std::max<int64_t>(longest_us_, late);
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<int64_t> longest_us_{0};
  std::thread thread_;  // last: it uses the others
};

// A call of a WorkingEngine may take its deadline and what the scheduler makes of it: it can be late twice, when the call begins and when
// its time is over, and the thread that waits is one of several. What it does itself is worth microseconds; this much is 5 % of the deadline
// (measured with both cores taken by compilers: 4 to 12 % in all).
inline double StallMost(const SchedulersLateness& scheduler) {
  constexpr int64_t kOwnMicros = WorkingEngine::kDeadlineMicros / 20;
  return static_cast<double>(WorkingEngine::kDeadlineMicros + kOwnMicros + 2 * scheduler.longest_us());
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SCHEDULERS_LATENESS_H_
