#include "daemon/session/closer.h"

#include <pthread.h>

#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"

namespace kvist::session {

struct Closer::State : std::enable_shared_from_this<Closer::State> {
  struct Item {
    uid_t of;
    std::vector<UniqueFd> fds;
    std::function<void()> closed;
  };

  absl::Mutex mutex;
  absl::CondVar work;                                      // there is some for a thread that waits, or no more will be
  absl::CondVar rest;                                      // a thread has closed something
  std::deque<Item> items ABSL_GUARDED_BY(mutex);           // that nobody is closing
  absl::flat_hash_set<uid_t> busy ABSL_GUARDED_BY(mutex);  // whose a thread is closing
  int threads ABSL_GUARDED_BY(mutex) = 0;
  int idle ABSL_GUARDED_BY(mutex) = 0;
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  // The first whose user has nothing closed now.
  std::deque<Item>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto next = items.begin();
    while (next != items.end() && busy.contains(next->of)) ++next;
    return next;
  }
  bool AllClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return items.empty() && busy.empty(); }

  // One thread more where there is something to do and nobody waits for it.
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (idle > 0 || threads == kThreadsMax || Next() == items.end()) return;
    try {
      std::thread thread([state = shared_from_this()] { state->Work(); });
      ::pthread_setname_np(thread.native_handle(), "kvist-closer");
      thread.detach();
      ++threads;
    } catch (const std::system_error&) {
      // None can be had now. Those that there are go on; without any it is tried again with the next thing to close.
    }
  }

  void Work() {
    absl::MutexLock lock(&mutex);
    while (true) {
      ++idle;
      while (!stopping && Next() == items.end()) work.Wait(&mutex);
      --idle;
      const auto next = Next();
      if (next == items.end()) break;
      Item item = std::move(*next);
      items.erase(next);
      busy.insert(item.of);
      StartThread();
      mutex.Unlock();
      item.fds.clear();
      mutex.Lock();
      busy.erase(item.of);
      rest.Signal();
      if (item.closed != nullptr && !stopping)
        item.closed();  // under the lock, so that none is called once the destructor has begun
    }
    --threads;
  }
};

Closer::Closer() : state_(std::make_shared<State>()) {}

Closer::~Closer() {
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
  state_->work.SignalAll();
  const absl::Time until = MonotonicNow() + kPatience;
  while (!state_->AllClosed() && MonotonicNow() < until)
    state_->rest.WaitWithTimeout(&state_->mutex, until - MonotonicNow());
}

void Closer::Close(uid_t of, std::vector<UniqueFd> fds, std::function<void()> closed) {
  absl::MutexLock lock(&state_->mutex);
  state_->items.push_back({of, std::move(fds), std::move(closed)});
  state_->StartThread();
  state_->work.Signal();
}

}  // namespace kvist::session
