#ifndef KVIST_DAEMON_CORE_PLANTED_BUG_H_
#define KVIST_DAEMON_CORE_PLANTED_BUG_H_

// The simulator is itself tested: tests/sim builds the core once with each of these bugs and must find it. CMake sets
// KVIST_PLANTED_BUG for those builds only; everywhere else it is 0 and every `if constexpr (kPlanted == ...)` is gone.
#ifndef KVIST_PLANTED_BUG
#define KVIST_PLANTED_BUG 0
#endif

namespace kvist::core {

enum class PlantedBug {
  kNone = 0,
  kPublishBeforeCompletion = 1,  // a chunk is a hit as soon as its copies have started
  kSlotReusedUnderHold = 2,      // a chunk that a copy still reads is evicted
  kGenerationNotChecked = 3,     // a stale handle resolves to whoever has its place now
  kLeaseOfDeadSessionKept = 4,   // a session's leases survive it
  kSealedAfterOneRank = 5,       // the first of several ranks seals the chunk
};

inline constexpr PlantedBug kPlanted{KVIST_PLANTED_BUG};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PLANTED_BUG_H_
