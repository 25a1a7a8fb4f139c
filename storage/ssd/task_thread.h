#ifndef KVIST_STORAGE_SSD_TASK_THREAD_H_
#define KVIST_STORAGE_SSD_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace kvist::ssd {

// A thread that does what it is given, in that order. What waits is bounded by whoever posts.
//
// Lifecycle: it runs from its making; Join does what waits, and what that posts, and ends it. Threads: any may post.
class TaskThread {
 public:
  using Task = std::function<void()>;
  TaskThread() : thread_([this] { Run(); }) {}
  ~TaskThread() { Join(); }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  void Post(Task task) {
    const absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
    posted_.Signal();
  }
  // Not before then; when it is joined, at once.
  void PostAt(absl::Time when, Task task) {
    const absl::MutexLock lock(&mutex_);
    later_.emplace(when, std::move(task));
    posted_.Signal();
  }
  void Join() {
    {
      const absl::MutexLock lock(&mutex_);
      ending_ = true;
      posted_.Signal();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    while (Task task = Next()) task();
  }
  Task Next() {
    const absl::MutexLock lock(&mutex_);
    for (;;) {
      const absl::Time now = MonotonicNow();
      while (!later_.empty() && (ending_ || later_.begin()->first <= now)) {
        tasks_.push_back(std::move(later_.begin()->second));
        later_.erase(later_.begin());
      }
      if (!tasks_.empty()) {
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        return task;
      }
      if (ending_) return nullptr;
      if (later_.empty()) {
        posted_.Wait(&mutex_);
      } else {
        posted_.WaitWithTimeout(&mutex_, later_.begin()->first - now);
      }
    }
  }

  absl::Mutex mutex_;
  absl::CondVar posted_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, Task> later_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_TASK_THREAD_H_
