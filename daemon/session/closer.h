#ifndef KVIST_DAEMON_SESSION_CLOSER_H_
#define KVIST_DAEMON_SESSION_CLOSER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// Closes descriptors that strangers have sent, and sockets in which such may still lie. Whoever closes a file last may be kept waiting by its
// owner: a TCP socket lingers for as long as it was told to, a file system in user space answers when it likes. So it is done by threads
// that nothing waits for, one user's by one of them at a time: who keeps a close waiting keeps his own waiting.
//
// Lifecycle: the destructor waits a little for what is being closed, and leaves what hangs to the end of the process, which the kernel
//   may keep waiting in its turn.
// Threads: any.
class Closer {
 public:
  static constexpr int kThreadsMax = 16;                                // users who hang at once; others' then wait, too
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);  // of the destructor

  Closer();
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  // Closes what came from `of`, behind what came from it before; then calls `closed` on a thread of its own, unless the destructor has begun.
  // `closed` must not call this.
  void Close(uid_t of, std::vector<UniqueFd> fds, std::function<void()> closed = nullptr);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // also of threads that hang
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_CLOSER_H_
