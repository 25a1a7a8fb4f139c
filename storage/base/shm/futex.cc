#include "storage/base/shm/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace kvist::shm {

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_nanos) {
  timespec deadline;
  deadline.tv_sec = deadline_nanos / 1'000'000'000;
  deadline.tv_nsec = deadline_nanos % 1'000'000'000;
  // The BITSET form takes an absolute CLOCK_MONOTONIC time. Not PRIVATE: the word is shared between processes.
  ::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline_nanos == INT64_MAX ? nullptr : &deadline, nullptr,
            FUTEX_BITSET_MATCH_ANY);
}

void FutexWakeAll(const std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t CurrentCpu() { return static_cast<uint32_t>(::sched_getcpu()); }

}  // namespace kvist::shm
