#ifndef KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
#define KVIST_TESTS_SUPPORT_CRASH_PLAN_H_

#include <atomic>
#include <cstdint>

namespace kvist::test {

// Where a kvistd_crashing dies, in a file that it shares with whoever has started it (SharedFile).
struct CrashPlan {
  std::atomic<uint32_t> left;  // so many more steps that begin with `step`, then it dies; 0: it doesn't
  char step[60];
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
