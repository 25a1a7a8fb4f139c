#include "daemon/job_keeper.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "storage/base/clock.h"
#include "storage/base/kept_file.h"

namespace kvist::daemon {

JobKeeper::JobKeeper(std::string path, absl::Duration again)
    : path_(std::move(path)), again_(again), thread_([this] { Run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvist-jobs");
}

JobKeeper::~JobKeeper() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    said_more_.Signal();
  }
  thread_.join();
}

void JobKeeper::Keep(JobFile jobs) {
  const absl::MutexLock lock(&mutex_);
  next_ = std::move(jobs);
  ++said_;
  said_more_.Signal();
}

bool JobKeeper::Settle(absl::Time deadline) {
  const absl::MutexLock lock(&mutex_);
  const uint64_t said = said_;
  while (tried_ < said && MonotonicNow() < deadline) tried_more_.WaitWithTimeout(&mutex_, deadline - MonotonicNow());
  return tried_ >= said && written_;
}

void JobKeeper::Run() {
  bool troubled = false;
  std::string text;  // of the last list
  for (;;) {
    std::optional<JobFile> jobs;
    uint64_t said = 0;
    {
      const absl::MutexLock lock(&mutex_);
      const absl::Time until = troubled ? MonotonicNow() + again_ : absl::InfiniteFuture();
      while (!next_.has_value() && !stopping_ && MonotonicNow() < until)
        said_more_.WaitWithTimeout(&mutex_, until - MonotonicNow());
      if (!next_.has_value() && !troubled) return;
      jobs = std::exchange(next_, std::nullopt);
      said = said_;
    }
    if (jobs.has_value()) text = jobs->Text();
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
    tried_more_.SignalAll();
    if (troubled && stopping_ && !next_.has_value()) return;
  }
}

}  // namespace kvist::daemon
