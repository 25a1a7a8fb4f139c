#ifndef KVIST_STORAGE_BASE_SHM_FUTEX_H_
#define KVIST_STORAGE_BASE_SHM_FUTEX_H_

#include <atomic>
#include <cstdint>
#include <span>

namespace kvist::shm {

// Sleeps while *word == expected, at most until `deadline_nanos` (monotonic, INT64_MAX: for ever). May wake early; the caller looks
// again.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_nanos);
// Wakes all that sleep on the word, in any process. True: somebody slept there.
bool FutexWakeAll(const std::atomic<uint32_t>* word);

// One of several words that a thread waits for.
struct FutexWord {
  const std::atomic<uint32_t>* word;
  uint32_t expected;
};
// How many words FutexWaitAny takes: 128 (the kernel's limit), or 1 where futex_waitv isn't to be had (before Linux 5.16, or filtered).
size_t FutexWordsMax();
// FutexWait on several words at once: sleeps while each has its expected value. 1 <= words.size() <= FutexWordsMax().
void FutexWaitAny(std::span<const FutexWord> words, int64_t deadline_nanos);

// The processor that this thread runs on now.
uint32_t CurrentCpu();

// One turn of a busy wait.
inline void SpinPause() { __builtin_ia32_pause(); }

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_FUTEX_H_
