#ifndef KVIST_STORAGE_BASE_SHM_FUTEX_H_
#define KVIST_STORAGE_BASE_SHM_FUTEX_H_

#include <atomic>
#include <cstdint>

namespace kvist::shm {

// Sleeps while *word == expected, at most until `deadline_nanos` (monotonic, INT64_MAX: for ever). May wake early; the caller looks again.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_nanos);
// Wakes all that sleep on the word, in any process.
void FutexWakeAll(const std::atomic<uint32_t>* word);

// The processor that this thread runs on now.
uint32_t CurrentCpu();

// One turn of a busy wait.
inline void SpinPause() { __builtin_ia32_pause(); }

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_FUTEX_H_
