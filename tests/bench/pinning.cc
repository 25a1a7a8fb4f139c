#include "tests/bench/pinning.h"

#include "storage/base/check.h"

namespace kvist::bench {

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  KVIST_CHECK(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

Pinned::Pinned(int cpu) {
  CPU_ZERO(&before_);
  KVIST_CHECK(::sched_getaffinity(0, sizeof before_, &before_) == 0);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  KVIST_CHECK(::sched_setaffinity(0, sizeof set, &set) == 0);
}

Pinned::~Pinned() { KVIST_CHECK(::sched_setaffinity(0, sizeof before_, &before_) == 0); }

}  // namespace kvist::bench
