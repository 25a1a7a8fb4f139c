#ifndef KVIST_DAEMON_TASK_THREAD_H_
#define KVIST_DAEMON_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace kvist::daemon {

// A thread that runs what it is given, in its order, and between that, when it is time, a task of its own: however much it is given, one of each
// after the other.
//
// Lifecycle: create -> Start -> Stop, or the destructor: returns when the task that runs has ended; those that wait are dropped.
// Threads: Post and Wake from any, also from tasks; the rest from one.
class TaskThread {
 public:
  ~TaskThread() { Stop(); }

  // `own` runs soon, and again after as long as it said the last time; Wake has it run sooner.
  void Start(std::function<absl::Duration()> own) {
    own_ = std::move(own);
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
  bool OwnIsDue(absl::Time due) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return own_ && (woken_ || MonotonicNow() >= due);
  }
  void Run() {
    absl::Time due = own_ ? absl::InfinitePast() : absl::InfiniteFuture();
    bool own_was_last = false;
    while (true) {
      std::function<void()> task;
      {
        const absl::MutexLock lock(&mutex_);
        while (tasks_.empty() && !stopping_ && !OwnIsDue(due)) changed_.WaitWithTimeout(&mutex_, due - MonotonicNow());
        if (stopping_) return;
        own_was_last = OwnIsDue(due) && (!own_was_last || tasks_.empty());
        if (own_was_last) {
          woken_ = false;
        } else {
          task = std::move(tasks_.front());
          tasks_.pop_front();
        }
      }
      if (own_was_last) {
        due = MonotonicNow() + own_();
      } else {
        task();
      }
    }
  }

  std::function<absl::Duration()> own_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_TASK_THREAD_H_
