#include "examples/replay/stop_signal.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

namespace kvist::replay {
namespace {

std::atomic<int> caught{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

void Remember(int signal) { caught.store(signal); }

}  // namespace

void CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = &Remember;
  // The second one has its default effect; no SA_RESTART: waits must wake up.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  // Whoever reads our output may leave first (`| head`): writing then fails, and we end in order.
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() { return caught.load(); }

void SleepUntil(std::chrono::steady_clock::time_point moment) {
  constexpr auto kSlice = std::chrono::milliseconds(100);  // how late a signal is noticed
  while (StopSignal() == 0) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= moment) return;
    std::this_thread::sleep_until(std::min(moment, now + kSlice));
  }
}

}  // namespace kvist::replay
