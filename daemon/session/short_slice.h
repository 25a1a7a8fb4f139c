#ifndef KVIST_DAEMON_SESSION_SHORT_SLICE_H_
#define KVIST_DAEMON_SESSION_SHORT_SLICE_H_

#include <cstdint>

namespace kvist::session {

inline constexpr int64_t kShortSliceNanos = 100'000;  // the kernel's least

// Asks the kernel for short slices of time for the calling thread: one that works for microseconds and sleeps. Its share of the processor stays what
// it is, but when it is woken it usually gets it at once, also from whoever runs there and hasn't used up a longer slice; unless it has had more
// than its share lately. The price: it is interrupted as soon itself. Without that a client on the reactor's processor often goes on, waits by a
// system call of its own, and has to be woken by another (4 of 10 idle requests; 1 of 100 with it; measured on Linux 6.18 by counting futex calls of
// `kvist-bench roundtrip`). Threads that it starts later have short slices, too.
// False, and nothing is changed: the kernel doesn't know this (before 6.12) or doesn't allow the call, or the thread's policy isn't the ordinary one.
bool AskForShortSlices();

// How long the calling thread's slices are; 0: the kernel doesn't tell, or the policy isn't the ordinary one.
int64_t SliceNanos();

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_SHORT_SLICE_H_
