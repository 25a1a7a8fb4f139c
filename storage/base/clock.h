#ifndef KVIST_STORAGE_BASE_CLOCK_H_
#define KVIST_STORAGE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace kvist {

// Time that never jumps: CLOCK_MONOTONIC carried in an absl::Time whose epoch is the machine's boot. All processes of a node
// read the same clock, so a deadline means the same moment on both sides of a session. Never compared with a wall time.
absl::Time MonotonicNow();

// The same in nanoseconds since boot: the form in which deadlines stand in shared memory.
int64_t MonotonicNanos();

inline absl::Time FromMonotonicNanos(int64_t nanos) { return absl::FromUnixNanos(nanos); }
inline int64_t ToMonotonicNanos(absl::Time time) { return absl::ToUnixNanos(time); }

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_CLOCK_H_
