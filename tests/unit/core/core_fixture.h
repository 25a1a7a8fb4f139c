#ifndef KVIST_TESTS_UNIT_CORE_CORE_FIXTURE_H_
#define KVIST_TESTS_UNIT_CORE_CORE_FIXTURE_H_

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "storage/base/check.h"
#include "storage/pool/slot_allocator.h"
#include "tests/support/told_chunks.h"

namespace kvist::core {

// The key of chunk `n`; different numbers give different keys.
ChunkKey KeyOf(uint64_t n);
std::vector<ChunkKey> KeysOf(std::initializer_list<uint64_t> numbers);

// A space named `name`, of `tenant`, with one group.
SpaceSpec SpaceNamed(std::string_view name, std::vector<Bytes> slot_bytes_of_ranks, std::string_view tenant = "tenant");

// A core over a pool without memory, and calls that read like what engines do. Checks the core's invariants after every event, and that what
// it tells of its chunks is what it holds.
class CoreFixture {
 public:
  struct Options {
    CoreOptions core;
    Bytes slab_bytes = KiB(64);
    uint32_t slabs = 1;  // in each region
    uint32_t regions = 1;
  };
  // `sections`: where its index lies, as the core takes it.
  explicit CoreFixture(Options options, pool::Sections* sections = nullptr);
  // A new core over a new pool: what the old one had is forgotten.
  void Restart(const Options& options, pool::Sections* sections = nullptr);
  CoreFixture() : CoreFixture(Options{}) {}

  // The effects of one event, but for what it tells of chunks, and for copies from slot to slot: they are done at once, unless they are held.
  template <class Event>
  Effects Do(const Event& event) {
    if (!watched) told.Watch(core.get());
    watched = true;
    Effects effects;
    core->Handle(event, &effects);
    core->CheckInvariants();
    const std::string wrong = told.Hear(&effects, *core);
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    KVIST_CHECK(wrong.empty());
    for (const Effect& effect : effects) slots_copied += std::holds_alternative<SlotsCopyStarted>(effect);
    std::erase_if(effects, [](const Effect& effect) { return std::holds_alternative<SlotsCopyStarted>(effect); });
    if (slots_copied > 0 && !hold_slots_copied) {
      slots_copied = 0;
      for (Effect& effect : Do(SlotsCopied{})) effects.push_back(std::move(effect));
    }
    return effects;
  }

  absl::Status Open(uint64_t session, std::string_view instance, Role role, uint16_t rank, const SpaceSpec& space,
                    uint32_t near = 0);
  // A worker of rank `rank` that must be accepted, with memory near region `near` of the pool.
  SessionId Worker(std::string_view instance, const SpaceSpec& space, uint16_t rank = 0, uint32_t near = 0);
  LookupAnswered Lookup(SessionId session, const std::vector<ChunkKey>& keys, absl::Duration lease = absl::ZeroDuration());
  // The copy that a request starts, or nothing; what it answered at once is in `ended` then.
  std::optional<CopyStarted> Store(SessionId session, const std::vector<ChunkKey>& keys, std::optional<ChunkKey> parent = {},
                                   GroupId group = {});
  std::optional<CopyStarted> Load(SessionId session, LeaseId lease, uint32_t first, uint32_t count, GroupId group = {});
  Effects Finish(OpId op, absl::Status status = absl::OkStatus()) { return Do(CopyFinished{op, std::move(status)}); }
  // Store and finish well; the number of chunks that were copied.
  uint32_t Keep(SessionId session, const std::vector<ChunkKey>& keys, std::optional<ChunkKey> parent = {},
                GroupId group = {});
  Effects PassTime(absl::Duration duration);

  std::unique_ptr<pool::SlotAllocator> slots;
  std::unique_ptr<Core> core;
  test::ToldChunks told;
  int slots_copied = 0;  // copies that are to be said to have ended
  bool hold_slots_copied = false;
  bool watched = false;  // from the next event on: what is taken over before is read
  absl::Time now = absl::UnixEpoch();
  std::optional<OpEnded> ended;  // the last request's, when it ended at once
  uint64_t next_session = 1;
  uint64_t next_tag = 1;

 private:
  std::optional<CopyStarted> Started(Effects effects);
};

}  // namespace kvist::core

#endif  // KVIST_TESTS_UNIT_CORE_CORE_FIXTURE_H_
