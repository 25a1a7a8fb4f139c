#ifndef KVIST_DAEMON_SESSION_REACTOR_H_
#define KVIST_DAEMON_SESSION_REACTOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cuda/copy_engine.h"
#include "daemon/core/core.h"
#include "daemon/session/engine_session.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// The one thread that owns the core. It takes requests off the sessions' rings, results from the copy engine and tasks from other
// threads, hands them to the core in the order in which they came, and carries the core's effects out.
//
// Waiting: after work it spins for up to kSpin when that is likely to pay (work came soon the last times, and no client runs on its
//   core), then tells the sessions that it sleeps and blocks in epoll on their doorbells. An idle reactor uses no time.
// Lifecycle: Create -> SetCopyEngine -> Start -> Stop (ends all sessions, returns when every copy is quiet) -> destroy.
// Threads: Open, Close, Run and CopyDone from any; the rest as said.
class Reactor {
 public:
  struct Options {
    int cpu = -1;  // pins the thread; -1: anywhere
  };
  // Where a slot's bytes are; null when the pool has no memory (benchmarks of the index).
  using SlotMemory = std::function<std::byte*(SlotRef)>;

  static absl::StatusOr<std::unique_ptr<Reactor>> Create(Options options, core::Core* core, SlotMemory slots);
  ~Reactor();

  // Before Start. The engine's `done` is CopyDone.
  void SetCopyEngine(cuda::CopyEngine* engine) { engine_ = engine; }
  void Start();
  void Stop();

  // Serves a session; `opened` hears (on the reactor's thread) whether the core accepts it. If it doesn't the session is gone.
  void Open(std::unique_ptr<EngineSession> session, std::function<void(absl::Status)> opened);
  // Ends a session whose process is gone or misbehaves; `drained` is called (on the reactor's thread) when no copy touches its memory
  // any more. Unknown sessions are drained.
  void Close(SessionId session, std::function<void()> drained);
  // Sessions that broke the protocol are reported here (on the reactor's thread), and ended by whoever hears it with Close.
  void OnBroken(std::function<void(SessionId, absl::Status)> broken) { broken_ = std::move(broken); }

  // The copy engine's completions.
  void CopyDone(OpId op, absl::Status status);

  // Runs a task on the reactor's thread, soon. After Stop tasks are dropped.
  void Run(std::function<void()> task);

  // ---- On the reactor's thread only ----
  core::Core& core() { return core_; }
  // Clears a space, or all; `done` hears how many chunks went.
  void Clear(std::optional<SpaceId> space, std::function<void(uint64_t)> done);
  template <class F>
  void ForEachSession(F f) const {
    for (const auto& [id, session] : sessions_) f(*session);
  }

 private:
  struct InFlight {  // a copy
    SessionId session;
    core::RequestTag tag;
    core::Direction direction;
  };
  static constexpr int64_t kSpinNanos =
      50'000;  // as long as a wake-up across cores takes on a VM (reference/limits.md: 30 to 55 us)
  static constexpr uint32_t kEntriesPerTurn = 16;  // of one session, before the next session's turn
  static constexpr int64_t kTickNanos =
      10'000'000;  // the core's clock may be so late: leases last 10 ms longer; not each wake-up pays for it
  static constexpr int64_t kDozeNanos =
      1'000'000'000;  // a session that was quiet for so long leaves the rounds until its doorbell rings

  static constexpr int64_t kListenNanos =
      1'000'000;  // sessions that are not polled are heard so soon, however busy the others are

  Reactor(Options options, core::Core* core, SlotMemory slots);
  void Loop();
  bool TakeInbox();
  bool DrainSessions();
  void CarryOut();
  void Sleep();
  void Listen(int timeout_ms);
  bool MaySpin() const;
  void Wake(SessionId session);
  void WakeThread();
  EngineSession* Find(SessionId id);

  void Carry(core::SessionAccepted& effect);
  void Carry(core::SessionRefused& effect);
  void Carry(core::SessionDrained& effect);
  void Carry(core::LookupAnswered& effect);
  void Carry(core::CopyStarted& effect);
  void Carry(core::CopyCancelled& effect);
  void Carry(core::OpEnded& effect);
  void Carry(core::ClearEnded& effect);

  const Options options_;
  core::Core& core_;
  const SlotMemory slots_;
  cuda::CopyEngine* engine_ = nullptr;
  std::function<void(SessionId, absl::Status)> broken_;
  UniqueFd epoll_;
  UniqueFd wake_;  // eventfd: something is in the inbox
  std::thread thread_;

  absl::Mutex inbox_mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(inbox_mutex_);  // bounded by callers that wait for theirs
  std::vector<std::pair<OpId, absl::Status>> copies_done_ ABSL_GUARDED_BY(inbox_mutex_);  // bounded by operations in flight
  bool stopped_ ABSL_GUARDED_BY(inbox_mutex_) = false;
  std::atomic<bool> inbox_full_{false};
  std::atomic<bool> asleep_{false};

  // The reactor thread's own.
  struct Round {  // a session that is polled
    SessionId id;
    EngineSession* session;
    int64_t last_work_nanos;
  };
  absl::flat_hash_map<SessionId, std::unique_ptr<EngineSession>> sessions_;
  absl::flat_hash_map<SessionId, std::function<void(absl::Status)>> opening_;
  absl::flat_hash_map<SessionId, std::vector<std::function<void()>>> draining_;
  absl::flat_hash_map<uint64_t, InFlight> in_flight_;
  absl::flat_hash_map<uint64_t, std::function<void(uint64_t)>> clears_;
  std::vector<Round> rounds_;
  core::Effects effects_;
  uint64_t next_job_ = 1;
  int64_t now_nanos_ = 0;
  int64_t ticked_nanos_ = 0;      // when the core was last told the time
  bool worked_ = false;           // the last turn did
  bool slept_ = false;            // the last turn ended by sleeping
  int64_t idle_since_nanos_ = 0;  // end of the last work
  int64_t listened_nanos_ = 0;    // when the doorbells were last looked at
  uint32_t soon_ = 0;             // how often lately work came within kSpin: spinning pays
  bool stopping_ = false;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_REACTOR_H_
