#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/ssd/hands.h"
#include "storage/ssd/rebuild.h"
#include "storage/ssd/store_device.h"

namespace kvist::ssd {
namespace {

// Lifecycle: it runs from its making.
class TaskThread final : public TaskQueue {
 public:
  TaskThread() : thread_([this] { Run(); }) {}
  ~TaskThread() override { End(); }

  void Post(Task task) override {
    const absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
    posted_.Signal();
  }
  void PostAt(absl::Time when, Task task) override {
    const absl::MutexLock lock(&mutex_);
    later_.emplace(when, std::move(task));
    posted_.Signal();
  }
  void Join() override { End(); }

 private:
  void End() {
    {
      const absl::MutexLock lock(&mutex_);
      ending_ = true;
      posted_.Signal();
    }
    if (thread_.joinable()) thread_.join();
  }
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

class ThreadHands final : public Hands {
 public:
  absl::Time Now() override { return MonotonicNow(); }
  std::unique_ptr<TaskQueue> MakeQueue() override { return std::make_unique<TaskThread>(); }
  void Start(StoreDevice* device) override { device->Start(); }
  void Join(StoreDevice* device) override { device->Join(); }
  void Await(const absl::Notification& done) override { done.WaitForNotification(); }
  uint32_t threads() const override { return RebuildOptions().readers; }
};

}  // namespace

Hands& Threads() {
  static ThreadHands hands;
  return hands;
}

}  // namespace kvist::ssd
