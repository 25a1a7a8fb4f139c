#ifndef KVIST_DAEMON_METRICS_SINGLE_FLIGHT_H_
#define KVIST_DAEMON_METRICS_SINGLE_FLIGHT_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace kvist::metrics {

// A question to another thread of which at most one is under way: whoever asks meanwhile waits for the same answer, so that a thread
// that hangs doesn't collect a question for each scrape.
//
// Threads: any. The answer may come after this object is gone.
template <class T>
class SingleFlight {
 public:
  using Answer = std::function<void(T)>;

  // `ask` has the question asked; it must not block, and calls its argument once, on any thread.
  explicit SingleFlight(std::function<void(Answer)> ask) : ask_(std::move(ask)) {}

  // The answer to a question that was under way or is asked now. `deadline` is on the monotonic clock.
  // Errors: DeadlineExceeded  no answer until then.
  absl::StatusOr<std::shared_ptr<const T>> Get(absl::Time deadline) {
    std::shared_ptr<Question> question;
    bool mine = false;
    {
      absl::MutexLock lock(&mutex_);
      mine = under_way_ == nullptr || under_way_->Answered();
      if (mine) under_way_ = std::make_shared<Question>();
      question = under_way_;
    }
    if (mine) ask_([question](T answer) { question->Take(std::move(answer)); });
    return question->Wait(deadline);
  }

 private:
  class Question {
   public:
    void Take(T answer) {
      auto taken = std::make_shared<const T>(std::move(answer));
      absl::MutexLock lock(&mutex_);
      answer_ = std::move(taken);
      answered_.SignalAll();
    }
    bool Answered() const {
      absl::MutexLock lock(&mutex_);
      return answer_ != nullptr;
    }
    absl::StatusOr<std::shared_ptr<const T>> Wait(absl::Time deadline) const {
      absl::MutexLock lock(&mutex_);
      while (answer_ == nullptr) {
        const absl::Duration left = deadline - MonotonicNow();
        if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
        answered_.WaitWithTimeout(&mutex_, left);
      }
      return answer_;
    }

   private:
    mutable absl::Mutex mutex_;
    mutable absl::CondVar answered_;
    std::shared_ptr<const T> answer_ ABSL_GUARDED_BY(mutex_);
  };

  const std::function<void(Answer)> ask_;
  absl::Mutex mutex_;
  std::shared_ptr<Question> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_SINGLE_FLIGHT_H_
