#ifndef KVIST_DAEMON_SESSION_ENGINE_SESSION_H_
#define KVIST_DAEMON_SESSION_ENGINE_SESSION_H_

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cuda/copy_engine.h"
#include "daemon/core/core.h"
#include "daemon/session/activity.h"
#include "daemon/session/registration.h"
#include "storage/base/shm/ring.h"
#include "storage/base/shm/session_memory.h"

namespace kvist::session {

// The reactor's half of one session: turns ring entries into core events, and effects into cells of the board.
//
// Everything that comes from the client is copied once and then checked; an entry that makes no sense is answered with
// InvalidArgument in its cell, and one that can't even be answered (no such cell, a cell that is busy, a broken ring) ends the session.
//
// Lifecycle: made by the listener, handed to the reactor, destroyed by it when the core says SessionDrained.
// Threads: the reactor's, but for the constructor. Copies in flight share the mapping and the KV memory, not this object.
class EngineSession {
 public:
  // The core may be told the time so late. Leases are granted for so much longer, or they would end before they may: the core counts them
  // from the time that it knows.
  static constexpr int64_t kCoreLateNanos = 10'000'000;

  struct Identity {
    SessionId id;
    pid_t pid = 0;
    uid_t uid = 0;
    absl::Time opened;
  };
  // `doorbell` is the eventfd that the client writes when the daemon sleeps.
  EngineSession(Identity identity, Registration registration, shm::SessionMemory memory, UniqueFd doorbell);

  // What one session may have done before the next one's turn.
  struct Turn {
    uint32_t entries = 16;
    // Of the core (Core::work), and what copying arguments costs, as much as that. No entry is begun past it: a turn comes to so
    // much and what one event may (CoreOptions::EventWorkBound). Larger: fewer turns for large requests, and others wait longer for
    // theirs.
    uint64_t work = 4096;
  };
  // Takes a turn's requests off the ring and hands them to the core; its effects are appended. The requests are said to have been taken at `now_nanos`,
  // and those whose deadline is earlier are answered DeadlineExceeded. How many were taken, or gone on with: hints may take several turns.
  // Errors: InvalidArgument  the session must be ended; says why.
  absl::StatusOr<uint32_t> Drain(Turn turn, int64_t now_nanos, core::Core* core, core::Effects* out);

  // The core serves it: the space, and where the durations of its loads and stores are recorded.
  void Accepted(SpaceId space, Latencies* latencies);

  // The answers.
  void Answer(const core::LookupAnswered& answer);
  void Answer(const core::OpEnded& ended);
  void Answer(const core::Flushed& flushed);
  void Answer(const core::Answered& answered);
  // The copy for an operation that the core has begun; `slots[i]` is the memory of effect.slots[i].
  cuda::Copy Begin(const core::CopyStarted& effect, std::vector<std::byte*> slots);

  // Whether the client has given this store up: its pages may have changed under the copy, so it must not be published.
  bool Abandoned(core::RequestTag tag) const;

  const Identity& identity() const { return identity_; }
  const Registration& registration() const { return registration_; }
  shm::RingConsumer& ring() { return ring_; }
  const std::shared_ptr<const shm::SessionMemory>& memory() const { return memory_; }
  const shm::Header& header() const { return *memory_->header(); }
  shm::Header& header() { return *memory_->header(); }
  int doorbell() const { return doorbell_.get(); }
  uint64_t requests() const { return requests_; }
  uint64_t ops_in_flight() const { return ops_in_flight_; }
  const Traffic& traffic() const { return traffic_; }
  SpaceId space() const { return space_; }  // once accepted

 private:
  // What the session keeps for the operation in a cell until it ends; block tables never enter the core.
  struct Pending {
    bool busy = false;
    uint32_t sequence = 0;
    OpId op;
    GroupId group;
    std::vector<PageId> pages;  // until its copy begins
    uint32_t page_count = 0;    // what it counts in pages_in_flight_
    uint32_t first_layer = 0;
    uint32_t layers = 0;
    shm::Opcode opcode{};
    uint32_t keys = 0;           // that a lookup asks for
    int64_t taken_nanos = 0;     // when it left the ring
    int64_t ready_by_nanos = 0;  // after a stream: what it may have to do before; 0: nothing
  };

  absl::Status HandleEntry(const shm::Entry& entry, int64_t now_nanos, core::Core* core, core::Effects* out);
  absl::Status ReadHint(const shm::Entry& entry);
  absl::Status ReadPrefill(const shm::Entry& entry, core::Core* core, core::Effects* out);
  // Tells the core as much of the hint as is done at once.
  void Hint(core::Core* core, core::Effects* out);
  // What of an entry can be refused in its cell. Fills keys_ and the cell's pages.
  absl::Status ReadArguments(const shm::Entry& entry, Pending* pending);
  absl::Status ReadPages(const shm::Entry& entry, uint64_t chunks, const std::byte* pages, Pending* pending);
  // Hands a request that was read to the core.
  void Ask(const shm::Entry& entry, const Pending& pending, core::Core* core, core::Effects* out);
  void AnswerWhere(const shm::Entry& entry, const core::Core& core);
  // How long an operation that has ended took; not of lookups that were answered in their turn, which the reactor measures together.
  void RecordLatency(const Pending& pending);
  // How long an operation that has ended waited to be taken, if the client says when it asked.
  void RecordWait(int64_t asked_nanos, const Pending& pending);
  bool on_gpu() const { return registration_.memory != nullptr && registration_.memory->gpu != nullptr; }
  void End(uint32_t cell, uint32_t sequence, const absl::Status& status, uint32_t copied, uint32_t skipped, uint32_t refused,
           uint64_t handle);

  Identity identity_;
  Registration registration_;
  std::shared_ptr<const shm::SessionMemory> memory_;
  UniqueFd doorbell_;
  shm::RingConsumer ring_;
  std::shared_ptr<const cuda::BusClaim> bus_claim_;  // null: the session has no GPU memory
  std::vector<Pending> pending_;                     // [cell]
  uint64_t pages_in_flight_ = 0;                     // page ids of operations that haven't ended
  std::vector<ChunkKey> keys_;                       // scratch of one entry
  core::Hint hint_;                                  // of the entry that is at the ring's end while hint_left_ isn't empty
  std::span<const ChunkKey> hint_left_;              // keys_ that it hasn't been told of
  const int64_t opened_nanos_;                       // nothing was asked before
  uint64_t requests_ = 0;
  uint64_t ops_in_flight_ = 0;
  Traffic traffic_;
  SpaceId space_;
  Latencies* latencies_ = nullptr;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_ENGINE_SESSION_H_
