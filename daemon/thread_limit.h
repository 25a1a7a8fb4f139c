#ifndef KVIST_DAEMON_THREAD_LIMIT_H_
#define KVIST_DAEMON_THREAD_LIMIT_H_

#include "absl/status/status.h"

namespace kvist::daemon {

// Whether this process may start so many threads more, which is tried: what limits them (of a user, of a unit, of a container) can't be asked
// for in one place, and a library that gets none where it needs one ends the process. Takes about 20 us a thread; they have ended when it returns (the kernel
// may count them for a moment more).
//
// Errors: ResourceExhausted  fewer; says how many, and what to raise.
absl::Status ThreadsLeft(int count);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_THREAD_LIMIT_H_
