#include "daemon/session/slot_mover.h"

#include <pthread.h>

#include <utility>

#include "cuda/nontemporal_copy.h"
#include "storage/base/check.h"

namespace kvist::session {

SlotMover::SlotMover() : thread_([this] { Loop(); }) { ::pthread_setname_np(thread_.native_handle(), "kvist-mover"); }

SlotMover::~SlotMover() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    work_.Signal();
  }
  thread_.join();
}

void SlotMover::Copy(std::vector<Piece> pieces, Bytes bytes, std::function<void()> done) {
  absl::MutexLock lock(&mutex_);
  KVIST_CHECK(pieces_.empty() && !pieces.empty());
  pieces_ = std::move(pieces);
  bytes_ = bytes;
  done_ = std::move(done);
  work_.Signal();
}

void SlotMover::Loop() {
  while (true) {
    std::vector<Piece> pieces;
    Bytes bytes;
    std::function<void()> done;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && pieces_.empty()) work_.Wait(&mutex_);
      if (stopping_) return;
      pieces = std::exchange(pieces_, {});
      bytes = bytes_;
      done = std::exchange(done_, nullptr);
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::byte* const next = i + 1 < pieces.size() ? pieces[i + 1].from : nullptr;
      cuda::CopyNontemporal(pieces[i].to, pieces[i].from, bytes.value, next);
    }
    cuda::FenceNontemporal();
    done();
  }
}

}  // namespace kvist::session
