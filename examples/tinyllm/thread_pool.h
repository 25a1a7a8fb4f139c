#ifndef KVIST_EXAMPLES_TINYLLM_THREAD_POOL_H_
#define KVIST_EXAMPLES_TINYLLM_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace tinyllm {

// Runs the pieces of one loop on several threads, the caller being one of them.
//
// Lifecycle: threads start with the pool and end with it. Between loops they spin for a moment (a forward pass is many short loops) and
//            then sleep: an idle engine uses no CPU.
// Threads:   one caller at a time; loops don't nest.
// Sharing:   `next_`, `running_` and `loop_` are atomics; body_, context_ and count_ are written by the caller before the release store
//            of loop_ and read by workers after an acquire load of it. A worker counts itself out of running_ when it is done with them,
//            and the caller waits for that: nothing outlives a loop.
class ThreadPool {
 public:
  // `threads` in all, at least 1; 0 is one for each core this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(i) once for each i in [0, count), in no particular order; returns when all are done.
  template <class Body>
  void ParallelFor(int count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    Run(
        count, [](void* context, int i) { (*static_cast<Plain*>(context))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  using Call = void (*)(void* context, int i);

  void Run(int count, Call body, void* context);
  void Work();        // takes pieces until there are none
  void WorkerLoop();  // a worker's life

  Call body_ = nullptr;
  void* context_ = nullptr;
  int count_ = 0;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<uint32_t> loop_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_THREAD_POOL_H_
