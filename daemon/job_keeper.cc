#include "daemon/job_keeper.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/kept_file.h"
#include "storage/base/clock.h"

namespace kvist::daemon {

JobKeeper::JobKeeper(std::string path, absl::Duration again)
    : path_(std::move(path)), again_(again), thread_([this] { Run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvist-jobs");
}

JobKeeper::~JobKeeper() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void JobKeeper::Keep(JobFile jobs) {
  const absl::MutexLock lock(&mutex_);
  next_ = std::move(jobs);
  ++said_;
}

bool JobKeeper::Settle(absl::Time deadline) {
  const absl::MutexLock lock(&mutex_);
  const auto tried = [this, said = said_] {
    mutex_.AssertHeld();
    return tried_ >= said;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&tried), deadline - MonotonicNow()) && written_;
}

void JobKeeper::Run() {
  const auto more = [this] {
    mutex_.AssertHeld();
    return next_.has_value() || stopping_;
  };
  bool troubled = false;
  std::string text;  // of the last list
  for (;;) {
    uint64_t said = 0;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&more), troubled ? again_ : absl::InfiniteDuration());
      if (!next_.has_value() && !troubled) return;
      if (next_.has_value()) text = std::exchange(next_, std::nullopt)->Text();
      said = said_;
    }
    const absl::Status written = KeepFile(path_, text);
    if (!written.ok() && !troubled) {
      spdlog::warn(
          "jobs that run now may not go on after a restart, and who asks again under a request's name may get another one "
          "then: {}",
          std::string(written.message()));
    }
    troubled = !written.ok();
    const absl::MutexLock lock(&mutex_);
    tried_ = said;
    written_ = written.ok();
    if (troubled && stopping_ && !next_.has_value()) return;
  }
}

}  // namespace kvist::daemon
