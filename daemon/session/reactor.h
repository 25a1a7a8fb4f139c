#ifndef KVIST_DAEMON_SESSION_REACTOR_H_
#define KVIST_DAEMON_SESSION_REACTOR_H_

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cuda/copy_engine.h"
#include "daemon/core/core.h"
#include "daemon/session/activity.h"
#include "daemon/session/doorbells.h"
#include "daemon/session/engine_session.h"
#include "daemon/session/listed_job.h"
#include "daemon/session/lower_tier.h"
#include "daemon/session/slot_mover.h"
#include "storage/base/shm/futex.h"

namespace kvist::session {

// The one thread that owns the core. It takes requests off the sessions' rings, results from the copy engine and tasks from other
// threads, hands them to the core in the order in which they came, and carries the core's effects out.
//
// Waiting: after work it spins when that is likely to pay (Pacing) and no client runs on its core; then it tells the sessions that it
//   sleeps and waits for one of their words (futex_waitv), or its inbox's. A session that was quiet for long, or for whose word there
//   is no room, is dropped from the round: its doorbell, heard by another thread, brings it back. An idle reactor uses no time.
// Lifecycle: Create -> SetCopyEngine -> Start -> Stop (ends all sessions, returns when every copy is quiet) -> destroy.
// Threads: Open, Close, Run and CopyDone from any; the rest as said.
class Reactor : public LowerTier::Ear {
 public:
  struct Options {
    int cpu = -1;                         // pins the thread; -1: anywhere
    size_t words = shm::FutexWordsMax();  // that it waits for at once, its inbox's among them
    std::vector<std::string> tenants;     // whose traffic is counted apart
    // The region of the pool that is nearest to a NUMA node (-1: unknown). Without it there is but one.
    std::function<uint32_t(int numa_node)> region_near = {};
  };
  // Where a slot's bytes are; null when the pool has no memory (benchmarks of the index).
  using SlotMemory = std::function<std::byte*(SlotRef)>;

  // Errors: InvalidArgument  this process may not run on that CPU.  Those of Doorbells.
  static absl::StatusOr<std::unique_ptr<Reactor>> Create(Options options, core::Core* core, SlotMemory slots);
  ~Reactor() override;

  // Before Start. The engine's `done` is CopyDone. It outlives the tiers below, whose threads tell it what has come.
  void SetCopyEngine(cuda::CopyEngine* engine) { engine_ = engine; }
  // Before Start, or not at all.
  void SetDiskTier(DiskTier* disk) { disk_ = disk; }
  void SetRemoteTier(RemoteTier* remote) { remote_ = remote; }
  void Say(LowerTier::Event event) override;
  bool Tell(LowerTier::Event event) override;
  std::optional<SpaceId> FindSpace(const SpaceDigest& digest) override;
  void Start();
  void Stop();

  // Serves a session; `opened` hears (on the reactor's thread) whether the core accepts it. If it doesn't the session is gone.
  void Open(std::unique_ptr<EngineSession> session, std::function<void(absl::Status)> opened);
  // Ends a session whose process is gone or misbehaves; `drained` is called (on the reactor's thread) when no copy touches its memory
  // any more. Unknown sessions are drained.
  void Close(SessionId session, std::function<void()> drained);
  // Sessions that broke the protocol are reported here (on the reactor's thread), and ended by whoever hears it with Close.
  void OnBroken(std::function<void(SessionId, absl::Status)> broken) { broken_ = std::move(broken); }

  // Hears (on the reactor's thread) that chunks were dropped because they held other bytes than were stored. Before Start.
  void OnCorruption(std::function<void(const core::CorruptionFound&)> corruption) { corruption_ = std::move(corruption); }
  // Hears (on the reactor's thread) that a pin of an earlier daemon keeps nothing any more. Before Start.
  void OnPinLost(std::function<void(const core::PinLost&)> lost) { pin_lost_ = std::move(lost); }

  // Hears (on the reactor's thread) of all jobs that are listed, in their order, whenever one was asked for, has become durable, or has ended.
  // Before Start.
  void OnJobs(std::function<void(std::vector<ListedJob>)> listed) { jobs_listed_ = std::move(listed); }
  // Jobs of an earlier daemon, which the core has none of yet: those that have ended are listed, and those that ran are asked for again under
  // their names, as the first that the reactor does, before any session or tier is heard: so a clear meets nothing that is stored from now on.
  // What can't go on here ends as cancelled, and says why. Numbers of new ones come after `last`. Before Start.
  void GoOnWith(std::vector<ListedJob> jobs, core::JobId last);

  // Makes everything that is there survive the daemon, and calls `flushed` (on the reactor's thread) with how that went; with Cancelled
  // when the reactor stops before.
  void Flush(std::function<void(const core::Flushed&)> flushed);

  // The copy engine's completions.
  void CopyDone(OpId op, cuda::CopyEnd end);

  // Has the thread look at its inbox. Run and the like do so themselves; once more is for who waits long, should a client have undone a
  // waking (see Sleep).
  void Wake();

  // Runs a task on the reactor's thread, soon. After Stop tasks are dropped.
  void Run(std::function<void()> task);

  // ---- On the reactor's thread only ----
  core::Core& core() { return core_; }
  // Starts a clear of a space, or of all; nothing of it is a hit any more. When a job that is listed has this request (and it isn't empty)
  // it is that job, and nothing is started. Errors: AlreadyExists  that job is of something else; ResourceExhausted  as many jobs run as may.
  absl::StatusOr<core::JobId> Clear(std::optional<SpaceId> space, std::string request);
  // As Clear, of a prompt in a space that was met; its `job`, `request` and `what` are filled in. The request's name is one for each space.
  absl::StatusOr<core::JobId> ClearPrompt(core::PromptClearAsked clear, std::string request);
  absl::StatusOr<core::JobId> ClearTier(core::TierClearAsked clear, std::string request);
  absl::StatusOr<core::JobId> Move(core::MoveAsked move, std::string request);
  absl::StatusOr<core::JobId> Recode(core::RecodeAsked recode, std::string request);
  // No effect on a job that has ended.
  void CancelJob(core::JobId job);
  // As core::QuotaSet says.
  void SetQuota(const std::string& tenant, std::optional<Bytes> quota);
  // As core::OperatorPinAsked says; how many chunks are kept. Errors: ResourceExhausted  the tenant's budget for pins.
  absl::StatusOr<uint32_t> Pin(SpaceId space, std::string owner, std::span<const ChunkKey> keys, absl::Duration lasts);
  void RemovePin(SpaceId space, const core::PinName& pin);
  // `changed` hears where chunks come to be, from now on and for good. Once.
  void WatchChunks(std::function<void(const core::ChunksChanged&)> changed);
  template <class F>
  void ForEachSession(F f) const {
    for (const auto& [id, session] : sessions_) f(*session);
  }
  // What all sessions have done, those that are gone and those that live.
  Activity::Rows Traffics() const;
  const Latencies& latencies() const { return activity_.latencies; }
  // As Activity::Name says.
  void NameTenants(const std::vector<std::string>& tenants, size_t most) { activity_.Name(tenants, most); }

 private:
  struct InFlight {  // a copy
    SessionId session;
    core::RequestTag tag;
    core::Direction direction;
    int64_t submitted_nanos;
    bool streams;  // it waits for a tier below: how long it takes says nothing of copying
  };
  // A chunk that is being read.
  struct Coming {
    std::shared_ptr<cuda::SlotArrival[]> arrivals;  // [shard]
    uint32_t shards = 0;
  };
  struct Quiet {  // a copy that is
    OpId op;
    cuda::CopyEnd end;
    int64_t nanos;
  };
  // How late the core's clock may be: not each wake-up pays for it.
  static constexpr int64_t kTickNanos = EngineSession::kCoreLateNanos;
  // A session that was quiet for so long leaves the rounds until its doorbell rings.
  static constexpr int64_t kDozeNanos = 1'000'000'000;
  static constexpr absl::Duration kWakeAgain = absl::Milliseconds(100);  // while somebody waits for a task
  // Between looks at the clock while something waits for it (Core::waits_for_clock)
  static constexpr int64_t kClockNanos = 50'000'000;

  // The futex word of the inbox.
  enum class Inbox : uint32_t { kEmpty = 0, kFull = 1, kAwaited = 2 };  // kAwaited: empty, and the reactor sleeps

  Reactor(Options options, core::Core* core, SlotMemory slots);
  void Loop();
  bool TakeInbox();
  bool DrainSessions();
  void CarryOut();
  void Hear(const LowerTier::Event& event);
  // What of the copy's slots is still being read.
  void Expect(const core::CopyStarted& effect, const EngineSession& session, cuda::Copy* copy) const;
  void Sleep();
  bool SharesCore() const;
  void Look() const;
  void Rung(SessionId session);
  void Poll(SessionId session);
  // Which word Wake wakes from now on: this session's, or with nullptr the inbox's own.
  void SleepOn(const EngineSession* session);
  // Runs a task on the reactor's thread and waits for it; false when it never runs.
  bool RunAndWait(std::function<void()> task);
  EngineSession* Find(SessionId id);
  void Forget(SessionId id);
  // Tells the core of a new job.
  template <class Asked>
  absl::StatusOr<core::JobId> StartJob(Asked asked, std::string request);
  void Resume(ListedJob job);
  // Errors: FailedPrecondition  a tier that it needs isn't here, or its space can't be opened.
  absl::StatusOr<std::optional<SpaceId>> SpaceToResume(const ListedJob& job);
  void Kept(const core::ClearKept& kept);
  void TellOfJobs();

  void Carry(core::SessionAccepted& effect);
  void Carry(core::SessionRefused& effect);
  void Carry(core::SessionDrained& effect);
  void Carry(core::LookupAnswered& effect);
  void Carry(core::CopyStarted& effect);
  void Carry(core::CopyWaits&) {}  // its session knows
  void Carry(core::CopyCancelled& effect);
  void Carry(core::OpEnded& effect);
  void Carry(core::Answered& effect);
  void Carry(core::PinAnswered&) {}  // Pin has it
  void Carry(core::JobEnded& effect);
  void Carry(core::CorruptionFound& effect);
  void Carry(core::WriteStarted& effect);
  void Carry(core::SlotsCopyStarted& effect);
  void Carry(core::ReadStarted& effect);
  void Carry(core::PlacesFreed& effect) { disk_->Free(std::move(effect)); }
  void Carry(core::PinsNoted& effect);
  void Carry(core::UsesNoted& effect) { disk_->NoteUses(std::move(effect)); }
  void Carry(core::PinLost& effect);
  void Carry(core::SpaceCleared& effect);
  void Carry(core::ChunksHidden& effect);
  void Carry(core::Flushed& effect);
  void Carry(core::RemoteAsked& effect);
  void Carry(core::RemoteForgotten& effect);
  void Carry(core::RecodeStarted& effect);
  void Carry(core::RecodeStopped& effect) { remote_->StopRecoding(effect.job); }
  void Carry(core::ChunksChanged& effect) { chunks_changed_(effect); }
  LowerTier& TierAt(core::Tier tier) const;
  LowerTier::Slots SlotsOf(SpaceId space, GroupId group, std::span<const SlotRef> slots) const;

  const Options options_;
  core::Core& core_;
  const SlotMemory slots_;
  cuda::CopyEngine* engine_ = nullptr;
  DiskTier* disk_ = nullptr;
  RemoteTier* remote_ = nullptr;
  std::function<void(SessionId, absl::Status)> broken_;
  std::function<void(const core::CorruptionFound&)> corruption_;
  std::function<void(const core::PinLost&)> pin_lost_;
  std::function<void(const core::ChunksChanged&)> chunks_changed_;
  std::function<void(std::vector<ListedJob>)> jobs_listed_;
  std::thread thread_;

  absl::Mutex inbox_mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(inbox_mutex_);  // bounded by callers that wait for theirs
  std::vector<Quiet> copies_done_ ABSL_GUARDED_BY(inbox_mutex_);            // bounded by operations in flight
  absl::flat_hash_set<SessionId> rung_ ABSL_GUARDED_BY(inbox_mutex_);       // doorbells
  bool stopped_ ABSL_GUARDED_BY(inbox_mutex_) = false;
  // Whose word stands for the inbox's in Sleep; null: nobody's, the inbox's own word is slept on.
  std::shared_ptr<const shm::SessionMemory> sleeps_on_ ABSL_GUARDED_BY(inbox_mutex_);
  std::atomic<uint32_t> inbox_{static_cast<uint32_t>(Inbox::kEmpty)};
  std::atomic<bool> sleeps_{false};  // the reactor is in Sleep

  // The reactor thread's own.
  struct Round {  // a session that is polled
    SessionId id;
    EngineSession* session;
    int64_t last_work_nanos;
  };
  absl::flat_hash_map<SessionId, std::unique_ptr<EngineSession>> sessions_;
  absl::flat_hash_map<std::string, uint32_t> tenants_;  // how many sessions each that has some has
  const shm::SessionMemory* stands_in_ = nullptr;       // sleeps_on_, to be read without its lock
  absl::flat_hash_map<SessionId, std::function<void(absl::Status)>> opening_;
  absl::flat_hash_map<SessionId, std::vector<std::function<void()>>> draining_;
  absl::flat_hash_map<uint64_t, InFlight> in_flight_;
  absl::flat_hash_map<uint64_t, Coming> coming_;                                      // by ChunkRef
  std::array<std::vector<LowerTier::ChunkToRead>, core::kTiers> reads_;               // [tier] that CarryOut hands over
  absl::flat_hash_map<uint64_t, std::function<void(const core::Flushed&)>> flushes_;  // by tag: the daemon's own
  uint64_t next_flush_ = 0;
  std::vector<Round> rounds_;
  size_t round_ = 0;                   // the one whose requests are handled
  std::vector<shm::FutexWord> words_;  // scratch of Sleep
  core::Effects effects_;
  uint64_t next_job_ = 1;
  std::map<core::JobId, std::shared_ptr<const AskedJob>> asked_jobs_;  // that run, or are to be done again
  Activity activity_;
  uint64_t lookups_answered_ = 0;
  int64_t now_nanos_ = 0;
  int64_t read_nanos_ = 0;    // the clock, when it was read at a turn's end; else 0
  int64_t ticked_nanos_ = 0;  // when the core was last told the time
  uint64_t turn_work_ = 0;    // of the core, for sessions, in the last turn
  bool stopping_ = false;

  std::unique_ptr<Doorbells> doorbells_;  // last, as the mover: their threads use the inbox
  std::unique_ptr<SlotMover> mover_;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_REACTOR_H_
