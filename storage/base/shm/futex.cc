#include "storage/base/shm/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

#include "storage/base/check.h"

namespace kvist::shm {
namespace {

timespec FromNanos(int64_t nanos) { return {.tv_sec = nanos / 1'000'000'000, .tv_nsec = nanos % 1'000'000'000}; }

}  // namespace

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_nanos) {
  const timespec deadline = FromNanos(deadline_nanos);
  // The BITSET form takes an absolute CLOCK_MONOTONIC time. Not PRIVATE: the word is shared between processes.
  ::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline_nanos == INT64_MAX ? nullptr : &deadline, nullptr,
            FUTEX_BITSET_MATCH_ANY);
}

bool FutexWakeAll(const std::atomic<uint32_t>* word) {
  return ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0) > 0;
}

size_t FutexWordsMax() {
  // A call without words is refused with EINVAL by a kernel that has it.
  static const bool available = ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) == -1 && errno == EINVAL;
  return available ? FUTEX_WAITV_MAX : 1;
}

void FutexWaitAny(std::span<const FutexWord> words, int64_t deadline_nanos) {
  KVIST_CHECK(!words.empty() && words.size() <= FUTEX_WAITV_MAX);
  if (words.size() == 1) return FutexWait(words[0].word, words[0].expected, deadline_nanos);
  std::array<futex_waitv, FUTEX_WAITV_MAX> waits;
  for (size_t i = 0; i < words.size(); ++i) {
    waits[i] = {
        .val = words[i].expected, .uaddr = reinterpret_cast<uintptr_t>(words[i].word), .flags = FUTEX_32, .__reserved = 0};
  }
  timespec deadline = FromNanos(deadline_nanos);
  ::syscall(SYS_futex_waitv, waits.data(), words.size(), 0, deadline_nanos == INT64_MAX ? nullptr : &deadline,
            CLOCK_MONOTONIC);
}

uint32_t CurrentCpu() { return static_cast<uint32_t>(::sched_getcpu()); }

}  // namespace kvist::shm
