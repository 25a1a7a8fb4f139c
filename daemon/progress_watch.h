#ifndef KVIST_DAEMON_PROGRESS_WATCH_H_
#define KVIST_DAEMON_PROGRESS_WATCH_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace kvist::daemon {

// Tells whether a thread that runs tasks still gets to them: a task that notes that it was run goes in, and the next question is
// whether it was. At most one is under way, however long the thread hangs.
//
// Threads: one; `run` hands the task to the other.
class ProgressWatch {
 public:
  using Run = std::function<void(std::function<void()>)>;
  explicit ProgressWatch(Run run) : run_(std::move(run)) { Ask(); }

  // Whether the thread has run the task that went in when this was last true (or at the start). If so, the next one goes in.
  bool Progressed() {
    if (!done_->load(std::memory_order_acquire)) return false;
    Ask();
    return true;
  }

 private:
  void Ask() {
    done_->store(false, std::memory_order_relaxed);
    run_([done = done_] { done->store(true, std::memory_order_release); });
  }

  const Run run_;
  const std::shared_ptr<std::atomic<bool>> done_ = std::make_shared<std::atomic<bool>>();  // the task may outlive this
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_PROGRESS_WATCH_H_
