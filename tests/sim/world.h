#ifndef KVIST_TESTS_SIM_WORLD_H_
#define KVIST_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/core.h"
#include "storage/pool/slot_allocator.h"
#include "tests/sim/copy_engine.h"
#include "tests/sim/memory.h"
#include "tests/sim/oracle.h"
#include "tests/sim/prng.h"
#include "tests/sim/shortage.h"
#include "tests/sim/verdict.h"
#include "tests/support/kept_sections.h"
#include "tests/support/told_chunks.h"

namespace kvist::sim {

// Engines of several tenants around one real core: schedulers that look up, workers that load and store, processes that die and
// return, a clock that jumps, a copy engine that fails. Everything is drawn from one seed: pool, spaces, instances, how often what
// happens, and every step.
//
// Lifecycle: create, then Run once.
// Threads: one.
class World {
 public:
  struct Options {
    uint64_t seed = 0;
    uint64_t events = 2500;         // of the core
    uint32_t invariants_every = 1;  // events between two checks of everything
    bool trace = false;             // a line per event on stdout
    uint64_t kill_at = 0;           // the point at which a session dies besides, 1 to deaths_possible(); 0: none
  };
  explicit World(Options options);

  // Runs the events, then lets all faults stop and everything end. False: a promise was broken, verdict() says which.
  bool Run();

  const Verdict& verdict() const { return verdict_; }
  const Oracle::Coverage& coverage() const { return oracle_->coverage(); }
  uint64_t evictions() const { return core_->status().evictions; }
  uint64_t events() const { return events_; }
  uint64_t slots_moved() const { return slots_moved_; }
  uint64_t shortages() const { return shortages_; }  // events for which the pool had no room
  uint64_t rolled_back() const {
    return rolled_back_;
  }  // stores that reserved slots of a chunk's shards and gave them back, for want of others
  uint64_t digest() const { return digest_; }  // of all effects: equal runs have equal ones
  // Points at which a session can die: before each event there is one for each that is open then.
  uint64_t deaths_possible() const { return deaths_possible_; }
  bool killed_in_flight() const { return killed_in_flight_; }  // kill_at met a session with copies in flight

 private:
  struct KnownLease {
    LeaseId id;
    uint32_t chunks = 0;
  };
  struct KnownAllocation {
    AllocationId id;
    GroupId group;
    uint32_t chunks = 0;
  };
  struct StoreJob {
    GroupId group;
    std::optional<ChunkKey> parent;
    std::vector<ChunkKey> keys;
  };
  struct Process {
    SessionId session;
    size_t engine = 0;
    core::Role role = core::Role::kScheduler;
    Rank rank;
    bool open = false;
    std::deque<StoreJob> jobs;
  };
  struct Engine {
    std::string name;
    size_t space = 0;
  };

  void MakePool();
  void MakeCore();
  void MakeSpaces();
  void MakeEngines();

  void Act();  // one random step
  // The core dies between two events, and another goes on with the pool.
  void Crash();
  void OpenSession();
  void OpenImpossibleSession();
  void KillSession();
  void Kill(Process& process);
  void KillAtPoint();
  void Lookup();
  void Load();
  void Compute();  // an engine has computed a prompt: every rank gets something to store
  void Store();
  void Release();
  void Cancel();
  void Pin();
  void Hint();
  void Allocate();
  void Swap();
  void Clear();
  // Jobs on a prompt. While one clears it nothing is stored or pinned in the space, and nothing was being stored: what becomes of that is tried
  // in tests/unit/core/disk_test.cc.
  void ClearPrompt();
  void MovePrompt();
  bool PromptGoes(SpaceId space) const;
  void CancelJob();
  void PassTime();
  void TellTime(absl::Time told);
  void StepCopies();
  bool Drain();

  std::vector<ChunkKey> Prompt();
  Process* RandomProcess(std::optional<core::Role> role);
  SessionId SomeSession(const Process& process);
  void Open(Process& process);
  void Ask(Process& process, StoreJob job);

  // The core's answer to one event: judged, then acted upon.
  template <class Event>
  const core::Effects& Deliver(const Event& event);
  // Does that, at times with next to no room.
  template <class Event>
  void Handle(const Event& event);
  void CarryOut(const core::Effect& effect);
  void CopySlots(const core::SlotsCopyStarted& copy);
  void Digest(const core::Effects& effects);

  const Options options_;
  Prng prng_;
  Prng crashes_;  // of its own, so that worlds without crashes are what they were before there were any
  Prng scarce_;   // and so for shortages
  Verdict verdict_;
  core::CoreOptions core_options_;
  pool::SlotAllocator::Options pool_;
  std::unique_ptr<pool::SlotAllocator> slots_;
  std::unique_ptr<Shortage> shortage_;
  uint32_t shortage_percent_ = 0;  // of the events that reserve
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<test::KeptSections> index_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<CopyEngine> copies_;
  core::Effects effects_;
  test::ToldChunks told_;

  std::vector<core::SpaceSpec> spaces_;
  std::vector<Engine> engines_;
  std::vector<Process> processes_;
  std::vector<std::vector<KnownLease>> leases_;            // [engine] what its processes remember, dead ones too
  std::vector<std::vector<KnownAllocation>> allocations_;  // [engine] the same
  std::vector<OpId> ops_;                                  // some, running or not
  std::vector<SessionId> dead_;                            // sessions
  std::vector<uint32_t> weights_;                          // [kind of step]
  std::vector<ChunkKey> seen_keys_;
  uint32_t branches_ = 2;
  uint32_t depth_ = 8;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time late_until_ = absl::InfiniteFuture();  // what a core has begun that is gone
  uint64_t next_session_ = 1;
  uint64_t next_tag_ = 1;
  uint64_t next_job_ = 1;
  uint64_t events_ = 0;
  uint64_t steps_ = 0;
  uint64_t shortages_ = 0;
  uint64_t slots_moved_ = 0;
  uint64_t rolled_back_ = 0;
  uint64_t deaths_possible_ = 0;
  bool killed_in_flight_ = false;
  uint64_t digest_ = 0xcbf29ce484222325;
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_WORLD_H_
