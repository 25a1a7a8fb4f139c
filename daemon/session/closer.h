#ifndef KVIST_DAEMON_SESSION_CLOSER_H_
#define KVIST_DAEMON_SESSION_CLOSER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// Lets go of what takes its time, on threads that nothing waits for:
//   - descriptors that strangers have sent, and sockets in which such may still lie. Whoever closes a file last may be kept waiting by its
//     owner: a TCP socket lingers for as long as it was told to, a file system in user space answers when it likes.
//   - memory of engines that have ended: kvistd is the last who has it, and the kernel frees it there and then (45 ms a GiB; Xeon,
//     2026-11-26).
// One user's descriptors by one thread at a time, and so his memory: who keeps a close waiting keeps his own waiting.
//
// Lifecycle: the destructor waits a little for what is being closed, and leaves what hangs to the end of the process, which the kernel
//   may keep waiting in its turn. Memory that waits is freed by it, and later by whoever has it last.
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

  // The same object, which is freed here when the last has let go of it, whenever that is. `of`: whose memory it is.
  template <class Memory>
  std::shared_ptr<Memory> FreedApart(uid_t of, std::shared_ptr<Memory> memory) {
    Memory* const raw = memory.get();
    return {raw, [state = state_, of, memory = std::move(memory)](Memory*) mutable { Free(*state, of, std::move(memory)); }};
  }

 private:
  struct State;
  static void Free(State& state, uid_t of, std::shared_ptr<const void> memory);

  const std::shared_ptr<State> state_;  // also of threads that hang, and of memory that is to be freed
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_CLOSER_H_
