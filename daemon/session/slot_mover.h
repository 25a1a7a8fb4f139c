#ifndef KVIST_DAEMON_SESSION_SLOT_MOVER_H_
#define KVIST_DAEMON_SESSION_SLOT_MOVER_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/units.h"

namespace kvist::session {

// Copies slots to other slots, for slabs that are to be emptied (daemon/core/vacating.h): on a thread of its own, so that nobody waits for it, past
// the caches, so that nobody loses what he has there. A slot is copied whole, with its header.
//
// Lifecycle: the destructor ends what is being copied, and drops what isn't begun.
// Threads: Copy from one at a time; `done` is called on the mover's.
class SlotMover {
 public:
  struct Piece {
    const std::byte* from;
    std::byte* to;
  };

  SlotMover();
  ~SlotMover();
  SlotMover(const SlotMover&) = delete;
  SlotMover& operator=(const SlotMover&) = delete;

  // Pieces of `bytes` each; those of the call before are done.
  void Copy(std::vector<Piece> pieces, Bytes bytes, std::function<void()> done);

 private:
  void Loop();

  absl::Mutex mutex_;
  absl::CondVar work_;  // there is some, or no more will be
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  Bytes bytes_ ABSL_GUARDED_BY(mutex_){};
  std::function<void()> done_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses what stands above
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_SLOT_MOVER_H_
