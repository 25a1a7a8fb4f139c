#ifndef KVIST_DAEMON_CORE_PLANTED_BUG_H_
#define KVIST_DAEMON_CORE_PLANTED_BUG_H_

namespace kvist::core {

enum class PlantedBug {
  kNone = 0,
  kPublishBeforeCompletion = 1,  // a chunk is a hit as soon as its copies have started
  kSlotReusedUnderHold = 2,      // a chunk that a copy still reads is evicted
  kGenerationNotChecked = 3,     // a stale handle resolves to whoever has its place now
  kLeaseOfDeadSessionKept = 4,   // a session's leases survive it
  kSealedAfterOneRank = 5,       // the first of several ranks seals the chunk
  kHalfStoreTakenOver = 6,       // what a core before this one was storing goes on as if it were whole
  kSlotInDoubtReused = 7,        // what it was storing is stored over at once
  kMovedUnderLoad = 8,           // a slot whose bytes were moved is free while a load still reads it
};

// The simulator is itself tested: it must find each of these. tests/sim builds the core a second time, with KVIST_PLANTABLE, and plants
// one of them before the core is made; everywhere else this is a constant, and every `if (planted == ...)` is gone.
#ifdef KVIST_PLANTABLE
inline PlantedBug planted = PlantedBug::kNone;
#else
inline constexpr PlantedBug planted = PlantedBug::kNone;
#endif

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PLANTED_BUG_H_
