#include "examples/replay/stop_signal.h"

#include <atomic>
#include <csignal>

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

}  // namespace kvist::replay
