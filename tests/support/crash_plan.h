#ifndef KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
#define KVIST_TESTS_SUPPORT_CRASH_PLAN_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace kvist::test {

// Where a kvistd_crashing dies, in a file that it shares with whoever has started it.
struct CrashPlan {
  std::atomic<uint32_t> left;  // so many more steps that begin with `step`, then it dies; 0: it doesn't
  char step[60];

  // The plan in that file, made when it isn't there. Never unmapped.
  static CrashPlan* In(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(CrashPlan)) != 0) std::abort();
    void* at = ::mmap(nullptr, sizeof(CrashPlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at == MAP_FAILED) std::abort();
    return static_cast<CrashPlan*>(at);
  }
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CRASH_PLAN_H_
