#ifndef KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
#define KVIST_TESTS_SUPPORT_CRASH_PLAN_H_

#include <atomic>
#include <cstdint>

namespace kvist::test {

// Where a kvistd_crashing dies, or stands, in a file that it shares with whoever has started it (SharedFile).
struct CrashPlan {
  std::atomic<uint32_t> left;  // so many more steps that begin with `step`, then it dies; 0: it doesn't
  // 1: the thread that comes to that step only goes no further, so that what waits for it can be killed
  std::atomic<uint32_t> stands;
  char step[60];
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
