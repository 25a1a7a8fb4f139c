#include "daemon/job_keeper.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/kept_file.h"
#include "storage/base/clock.h"

namespace kvist::daemon {

JobKeeper::JobKeeper(std::string path) : path_(std::move(path)), thread_([this] { Run(); }) {
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
  for (;;) {
    JobFile jobs;
    uint64_t said = 0;
    {
      const absl::MutexLock lock(&mutex_, absl::Condition(&more));
      if (!next_.has_value()) return;
      jobs = *std::exchange(next_, std::nullopt);
      said = said_;
    }
    const absl::Status written = KeepFile(path_, jobs.Text());
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
  }
}

}  // namespace kvist::daemon
