#ifndef KVIST_CONNECTOR_SRC_LINK_H_
#define KVIST_CONNECTOR_SRC_LINK_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "connector/src/engine_gpu.h"
#include "connector/src/registration.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/base/shm/ring.h"
#include "storage/base/shm/session_memory.h"
#include "storage/base/unique_fd.h"

namespace kvist::connector {

// One session with one daemon, from its Welcome to its end. A client has one after the other.
//
// Cells: Begin takes one and submits; the daemon ends it; Finish gives it back. A cell that its owner can't wait for any longer is
//   Forgotten: it comes back when the daemon has ended it, and a lease or allocation that came too late is given back then.
// Death: Fail, when the daemon is gone, ends all cells in its stead, so that no thread waits for ever.
// Threads: any.
class Link {
 public:
  // Connects and shakes hands, at most until `deadline_nanos` (monotonic), or `stop` can be read from. Sets registration->probed when the
  // daemon has seen the proof.
  // Errors: Unavailable  nobody there, gone meanwhile, or stopped (try again later); DeadlineExceeded; others: refused, with the daemon's reason.
  static absl::StatusOr<std::shared_ptr<Link>> Connect(Registration* registration, int64_t deadline_nanos, int stop);
  ~Link();

  struct Ticket {  // an operation in a cell
    uint32_t cell = 0;
    uint32_t sequence = 0;
  };
  enum class Room {
    kNow,
    kWait
  };  // what to do while the ring is full: the daemon is behind by a thousand requests, or stopped
  // Submits a request with its arguments in order; waits for room in the ring until `entry->deadline_nanos`, or not at all. Sets the entry's
  // cell, sequence and arena. The daemon is told that the engine asked at `asked_nanos`.
  // Errors: ResourceExhausted  all cells are in use, or no room now.  DeadlineExceeded  no room in time.  Unavailable  the link has failed.
  absl::StatusOr<Ticket> Begin(shm::Entry* entry, std::span<const std::span<const std::byte>> arguments, int64_t asked_nanos,
                               Room room);
  // Submits a request that has no answer; without room a free, release or cancel waits for Sweep, others are dropped: they are kindnesses.
  // Releases, hints and reports have time, as have questions where chunks are: they wake nobody, and are heard with the next request, the next
  // Sweep, or by Hurry.
  void Tell(shm::Entry entry, std::span<const std::span<const std::byte>> arguments = {});

  // How long it is worth looking before one sleeps: for an answer that kvistd has as soon as it has heard the question of so many keys; or not at all.
  static constexpr int64_t kNoSpin = 0;
  static int64_t SpinNanos(uint32_t keys);
  // Waits until the operation has ended, or `layers` layers are there, or the time has come. The progress as it is then.
  uint64_t Await(Ticket ticket, uint32_t layers, int64_t deadline_nanos, int64_t spin_nanos);
  uint64_t Progress(Ticket ticket) const;
  // Whether that progress says that the operation has ended (or its cell serves another one by now), or that `layers` layers are there.
  static bool Over(Ticket ticket, uint64_t progress, uint32_t layers) {
    return shm::PhaseOf(progress) == shm::Phase::kEnded || shm::SequenceOf(progress) != ticket.sequence ||
           shm::LayersOf(progress) >= layers;
  }
  const shm::Cell& cell(Ticket ticket) const { return *memory_->cell(ticket.cell); }

  // Whether the engine's streams can wait for operations and be waited for. Errors: FailedPrecondition  says why not.
  absl::Status HasStreams() const;
  // Has a stream wait until `layers` layers are there, or the operation has ended or was released. Errors: those, and the driver's.
  absl::Status WaitOnStream(Ticket ticket, uint32_t layers, void* stream);
  // Whether a stream can be given anything. Errors: those, the driver's, and FailedPrecondition  it captures a graph.
  absl::Status MayGive(void* stream);
  // The pages of the first `layers` layers are ready when `stream` comes to this. May block as the driver does, where the stream's queue is full.
  // Errors: the same.
  absl::Status PagesReady(Ticket ticket, uint32_t layers, void* stream);
  // The engine needs the bus until then.
  void ClaimBus(int64_t until_nanos);
  // Nothing of this operation is worth a stream's waiting any more.
  void ReleaseStreams(Ticket ticket);
  void ReleaseAllStreams();  // nor of any

  void Finish(Ticket ticket);  // the operation has ended and its answer was read
  // It hasn't ended and nobody will ask any more.
  void Forget(Ticket ticket, shm::Opcode opcode);
  void Abandon(Ticket ticket);  // of a store: from here on its pages may change, and it won't be published

  // Takes back forgotten cells that have ended meanwhile, says what found no room before, and has the daemon hear what was left in the ring. Whether
  // a question was left there since the last one: then the next should come soon.
  bool Sweep();
  // Somebody waits for an answer to what was left in the ring.
  void Hurry();
  bool has_forgotten() const;

  // The daemon is gone or has ended the session; nothing touches the pages. Ends all cells with Unavailable.
  void Fail();
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  int socket() const { return socket_.get(); }
  int daemon_pidfd() const { return daemon_pidfd_.get(); }
  const std::array<uint8_t, 32>& space_digest() const { return space_digest_; }

 private:
  Link() = default;
  // Whether streams have written to a cell all that they were told to.
  bool StreamsAreThrough(uint32_t cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the daemon hear what was left in the ring.
  void WakeForUnheard() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether there was room.
  bool SubmitLocked(shm::Entry* entry, std::span<const std::span<const std::byte>> arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  UniqueFd socket_;
  UniqueFd daemon_pidfd_;
  UniqueFd doorbell_;
  std::shared_ptr<const shm::SessionMemory> memory_;
  std::shared_ptr<EngineGpu::Board> board_;  // the same, for the engine's streams; null: see no_board_
  absl::Status no_board_;                    // why they can't reach it; OK: the memory is the host's
  std::array<uint8_t, 32> space_digest_{};
  std::atomic<bool> failed_{false};
  std::atomic<uint32_t> spin_pays_{4};  // how often lately the answer came while spinning

  mutable Mutex mutex_;
  std::optional<shm::RingProducer> ring_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_cells_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> sequences_ ABSL_GUARDED_BY(mutex_);      // [cell] of its last operation
  std::vector<bool> busy_ ABSL_GUARDED_BY(mutex_);               // [cell]
  std::vector<uint64_t> to_be_written_ ABSL_GUARDED_BY(mutex_);  // [cell] by a stream to its `ready`, the last; 0: nothing
  struct Forgotten {
    Ticket ticket;
    shm::Opcode opcode;
  };
  std::vector<Forgotten> forgotten_ ABSL_GUARDED_BY(mutex_);
  std::vector<shm::Entry> unsent_ ABSL_GUARDED_BY(mutex_);  // frees, releases, cancels
  uint32_t unheard_ ABSL_GUARDED_BY(mutex_) = 0;            // entries left in the ring since the daemon was last woken
  uint64_t unheard_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of the arena, that they take
  bool question_left_ ABSL_GUARDED_BY(mutex_) = false;      // since the last Sweep
};

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_LINK_H_
