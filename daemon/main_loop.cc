#include "daemon/main_loop.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

sigset_t Signals(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

int PollTimeout(absl::Time until) {
  if (until == absl::InfiniteFuture()) return -1;
  const absl::Duration left = std::max(until - MonotonicNow(), absl::ZeroDuration());
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(std::min(left, absl::Hours(1)), absl::Milliseconds(1))));
}

}  // namespace

struct MainLoop::Asked {
  absl::Notification answered;
  absl::StatusOr<rpc::ReloadResult> answer = absl::UnavailableError("kvistd is stopping");
};

absl::StatusOr<std::unique_ptr<MainLoop>> MainLoop::Create() {
  auto loop = std::unique_ptr<MainLoop>(new MainLoop);
  const sigset_t heard = Signals({SIGINT, SIGTERM, SIGHUP});
  pthread_sigmask(SIG_BLOCK, &heard, nullptr);
  loop->signals_ = UniqueFd(signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK));
  loop->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->signals_ || !loop->wake_) return ErrnoStatus("signalfd and eventfd of the main thread", errno);
  return loop;
}

absl::StatusOr<rpc::ReloadResult> MainLoop::AskReload(absl::Time deadline) {
  const auto asked = std::make_shared<Asked>();
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return asked->answer;
    asked_.push_back(asked);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  if (!asked->answered.WaitForNotificationWithTimeout(deadline - MonotonicNow()))
    return absl::DeadlineExceededError("the reload wasn't done in time; it goes on");
  // Taken, not copied: what is left there is nothing that two threads would let go of.
  return std::move(asked->answer);
}

void MainLoop::AnswerAll(const Reload& reload) {
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof wakes);
  std::vector<std::shared_ptr<Asked>> asked;
  {
    absl::MutexLock lock(&mutex_);
    asked.swap(asked_);
  }
  if (asked.empty()) return;
  // Once for all who asked before it began: one after the other they would wait for each other's.
  if (const auto answer = reload ? std::optional(reload()) : std::nullopt; answer.has_value()) {
    for (const auto& one : asked) one->answer = *answer;
  }
  for (const auto& one : asked) one->answered.Notify();
}

int MainLoop::Run(const Work& work) {
  absl::Time next_beat = MonotonicNow() + work.beat_every;
  int stop = 0;
  while (stop == 0) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    poll(fds, 2, PollTimeout(next_beat));
    if (MonotonicNow() >= next_beat) {
      work.beat();
      next_beat = MonotonicNow() + work.beat_every;
    }
    signalfd_siginfo info;
    while (stop == 0 && read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGHUP) {
        stop = static_cast<int>(info.ssi_signo);
      } else {
        (void)work.reload();  // it logs what comes of it
      }
    }
    if (stop == 0) AnswerAll(work.reload);
  }
  const sigset_t stops = Signals({SIGINT, SIGTERM});
  pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  AnswerAll(nullptr);
  return stop;
}

}  // namespace kvist::daemon
