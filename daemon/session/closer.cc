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
  // Whose, and of which kind: memory never hangs, and waits for no descriptor that does.
  struct Turn {
    uid_t of;
    bool memory;
    bool operator==(const Turn&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const Turn& turn) {
      return H::combine(std::move(h), turn.of, turn.memory);
    }
  };
  struct Item {
    Turn turn;
    std::vector<UniqueFd> fds;
    std::shared_ptr<const void> memory;
    std::function<void()> closed;
  };

  absl::Mutex mutex;
  absl::CondVar work;                                     // there is some for a thread that waits, or no more will be
  absl::CondVar rest;                                     // a thread has closed something
  std::deque<Item> items ABSL_GUARDED_BY(mutex);          // that nobody is closing
  absl::flat_hash_set<Turn> busy ABSL_GUARDED_BY(mutex);  // whose a thread is closing
  int threads ABSL_GUARDED_BY(mutex) = 0;
  int idle ABSL_GUARDED_BY(mutex) = 0;
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  // The first whose user has nothing closed now.
  std::deque<Item>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto next = items.begin();
    while (next != items.end() && busy.contains(next->turn)) ++next;
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
      busy.insert(item.turn);
      StartThread();
      mutex.Unlock();
      item.fds.clear();
      item.memory.reset();
      mutex.Lock();
      busy.erase(item.turn);
      rest.Signal();
      if (item.closed != nullptr && !stopping)
        item.closed();  // under the lock, so that none is called once the destructor has begun
    }
    --threads;
  }
};

Closer::Closer() : state_(std::make_shared<State>()) {}

Closer::~Closer() {
  std::vector<std::shared_ptr<const void>> memory;  // freed behind the lock
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
  state_->work.SignalAll();
  for (State::Item& item : state_->items) memory.push_back(std::move(item.memory));
  const absl::Time until = MonotonicNow() + kPatience;
  while (!state_->AllClosed() && MonotonicNow() < until)
    state_->rest.WaitWithTimeout(&state_->mutex, until - MonotonicNow());
}

void Closer::Close(uid_t of, std::vector<UniqueFd> fds, std::function<void()> closed) {
  absl::MutexLock lock(&state_->mutex);
  state_->items.push_back({{of, false}, std::move(fds), nullptr, std::move(closed)});
  state_->StartThread();
  state_->work.Signal();
}

void Closer::Free(State& state, uid_t of, std::shared_ptr<const void> memory) {
  absl::MutexLock lock(&state.mutex);
  if (!state.stopping) {
    state.items.push_back({{of, true}, {}, std::move(memory), nullptr});
    state.StartThread();
    state.work.Signal();
    if (state.threads == 0) {  // none can be had
      memory = std::move(state.items.back().memory);
      state.items.pop_back();
    }
  }
}

}  // namespace kvist::session
