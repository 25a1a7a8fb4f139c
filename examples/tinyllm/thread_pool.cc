#include "examples/tinyllm/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace tinyllm {
namespace {

// About 30 us: longer than the gaps between the loops of a forward pass, and about what waking a sleeper costs.
constexpr int kSpins = 1000;

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// Waits until `value` is no longer `old`; spins first.
template <class T>
void AwaitChange(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int count = threads > 0 ? threads : UsableCores();
  for (int i = 1; i < count; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  loop_.fetch_add(1);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int count, Call body, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int i = 0; i < count; ++i) body(context, i);
    return;
  }
  body_ = body;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);  // publishes all of the above
  loop_.notify_all();
  Work();
  for (int left = running_.load(std::memory_order_acquire); left != 0; left = running_.load(std::memory_order_acquire)) {
    AwaitChange(running_, left);
  }
}

void ThreadPool::Work() {
  for (int i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    body_(context_, i);
  }
}

void ThreadPool::WorkerLoop() {
  for (uint32_t seen = 0;; ++seen) {
    AwaitChange(loop_, seen);
    if (stop_.load()) return;
    Work();
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace tinyllm
