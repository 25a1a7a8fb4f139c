#ifndef KVIST_TESTS_BENCH_PINNING_H_
#define KVIST_TESTS_BENCH_PINNING_H_

#include <sched.h>

#include <vector>

namespace kvist::bench {

// The processors that this thread may run on, ascending.
std::vector<int> UsableCpus();

// Keeps the thread that makes it on one processor, until it goes. Threads that are started meanwhile inherit that: start them before.
class Pinned {
 public:
  explicit Pinned(int cpu);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_PINNING_H_
