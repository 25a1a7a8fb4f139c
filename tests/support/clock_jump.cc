// Preloaded into a kvistd: its wall clock is off by as many seconds as the file that $KVIST_CLOCK_JUMP names holds now (8 bytes, as
// they lie in memory). Its other clocks are left alone, as a step of the real one leaves them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

int64_t OffBySeconds() {
  static const std::atomic<int64_t>* const seconds = [] {
    const char* name = std::getenv("KVIST_CLOCK_JUMP");
    const int file = name != nullptr ? ::open(name, O_RDONLY | O_CLOEXEC) : -1;
    void* mapped = ::mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) std::abort();
    ::close(file);
    return static_cast<const std::atomic<int64_t>*>(mapped);
  }();
  return seconds->load(std::memory_order_relaxed);
}

}  // namespace

#define KVIST_INTERPOSED extern "C" __attribute__((visibility("default")))

KVIST_INTERPOSED int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto failed = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += OffBySeconds();
  return failed;
}

KVIST_INTERPOSED int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  const int failed = clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return failed;
}

KVIST_INTERPOSED time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
