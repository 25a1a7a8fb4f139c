#ifndef KVIST_DAEMON_TASK_THREAD_H_
#define KVIST_DAEMON_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvist::daemon {

// A thread that runs what it is given, in its order, and between that, as often as `every` says, a task of its own.
//
// Lifecycle: create -> Start -> Stop, or the destructor: returns when the task that runs has ended; those that wait are dropped.
// Threads: Post and Wake from any, also from tasks; the rest from one.
class TaskThread {
 public:
  ~TaskThread() { Stop(); }

  // `idle` runs soon, and again after as long as it said the last time; Wake has it run sooner.
  void Start(std::function<absl::Duration()> idle) {
    idle_ = std::move(idle);
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    {
      const absl::MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.Signal();
    }
    if (thread_.joinable()) thread_.join();
  }
  // Dropped once it is being stopped.
  void Post(std::function<void()> task) {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
    changed_.Signal();
  }
  void Wake() {
    const absl::MutexLock lock(&mutex_);
    woken_ = true;
    changed_.Signal();
  }

 private:
  void Run() {
    absl::Duration wait = absl::ZeroDuration();
    while (true) {
      std::function<void()> task;
      {
        const absl::MutexLock lock(&mutex_);
        if (tasks_.empty() && !stopping_ && !woken_ && wait > absl::ZeroDuration()) changed_.WaitWithTimeout(&mutex_, wait);
        if (stopping_) return;
        if (!tasks_.empty()) {
          task = std::move(tasks_.front());
          tasks_.pop_front();
        } else {
          woken_ = false;
        }
      }
      if (task) {
        task();
      } else {
        wait = idle_ ? idle_() : absl::InfiniteDuration();
      }
    }
  }

  std::function<absl::Duration()> idle_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_TASK_THREAD_H_
