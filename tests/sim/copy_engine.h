#ifndef KVIST_TESTS_SIM_COPY_ENGINE_H_
#define KVIST_TESTS_SIM_COPY_ENGINE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/events.h"
#include "tests/sim/memory.h"
#include "tests/sim/prng.h"

namespace kvist::sim {

// A copy engine whose copies go on page by page, in any order among each other, and end well, fail, or are lost until somebody
// cancels them. A cancelled copy may stop at once, or still go through and end with OK: both are in the real engine's contract.
// Completions are said twice now and then, the second time late.
// Threads: one.
class CopyEngine {
 public:
  CopyEngine(Memory* memory, Prng* prng) : memory_(*memory), prng_(*prng) {}

  void Start(OpId op, core::Direction direction, std::vector<ShardId> shards);
  void Cancel(OpId op);

  // Copies between slots, one list at a time.
  void StartSlots(std::vector<Memory::SlotCopy> copies) { slot_copies_ = std::move(copies); }
  // Does a bit of them; whether that was the last.
  bool StepSlots();
  // They are over: of these the new slot was taken, and what reads goes on reading in the old one.
  void EndSlots(const std::vector<SlotRef>& taken);

  // Does a bit of some copy; an event when one became quiet, or when an old completion is said again.
  std::optional<core::CopyFinished> Step();
  // Who asked is gone: nobody hears of these copies any more, and stores may go on writing for as long as EndLate isn't called.
  void LoseAll();
  void EndLate();
  size_t late() const { return late_.size(); }
  // No faults from now on: what is lost is found, and nothing fails.
  void StopFaults() { faults_ = false; }

  // Breaks a promise where what a load reads is in no live slot any more, though nobody has it yet.
  void CheckReads() const;
  bool copies_slots() const { return !slot_copies_.empty(); }
  size_t running() const { return copies_.size() + slot_copies_.size(); }

 private:
  struct Copy {
    OpId op;
    core::Direction direction = core::Direction::kLoad;
    std::vector<ShardId> shards;
    uint32_t next_shard = 0;
    uint32_t next_page = 0;
    bool lost = false;
    bool cancelled = false;
  };
  bool Advance(Copy& copy);  // one page; true when it was the last
  core::CopyFinished Finish(size_t at, absl::Status status);

  Memory& memory_;
  Prng& prng_;
  bool faults_ = true;
  std::vector<Copy> copies_;
  std::vector<Copy> late_;
  std::vector<Memory::SlotCopy> slot_copies_;
  size_t next_slot_ = 0;
  uint32_t next_slot_page_ = 0;
  std::vector<OpId> finished_;  // some of the last
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_COPY_ENGINE_H_
