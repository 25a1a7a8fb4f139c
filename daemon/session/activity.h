#ifndef KVIST_DAEMON_SESSION_ACTIVITY_H_
#define KVIST_DAEMON_SESSION_ACTIVITY_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/latency_histogram.h"
#include "storage/base/units.h"

namespace kvist::session {

// The hooks that get an answer, those that come most often first: their counts share lines.
enum class Hook : uint8_t { kLookup, kLoad, kStore, kSwapOut, kSwapIn, kPin, kUnpin, kAllocate, kFlush, kWhere };
inline constexpr size_t kHooks = 10;
inline constexpr std::array<Hook, kHooks> kAllHooks = {Hook::kLookup, Hook::kLoad, Hook::kStore, Hook::kSwapOut,
                                                       Hook::kSwapIn, Hook::kPin,  Hook::kUnpin, Hook::kAllocate,
                                                       Hook::kFlush,  Hook::kWhere};

const char* NameOf(Hook hook);  // as in DESIGN.md: lookup, load, store, swap_out, ..

// Where a request can wait before anybody works on it.
enum class Queue : uint8_t {
  kRing,       // for the reactor to take it: from the engine's call
  kCopyLoad,   // a copy, for a copy thread: from its submission to its first byte's turn
  kCopyStore,  // the same
};
inline constexpr size_t kQueues = 3;
inline constexpr std::array<Queue, kQueues> kAllQueues = {Queue::kRing, Queue::kCopyLoad, Queue::kCopyStore};

const char* NameOf(Queue queue);  // ring, copy_load, copy_store

// What was asked for and moved, since the start of whoever counts it. Chunks and bytes are one rank's shards.
struct Traffic {
  uint64_t lookups_hit = 0;      // all chunks that were asked for
  uint64_t lookups_partial = 0;  // a part of them
  uint64_t lookups_missed = 0;
  uint64_t chunks_asked = 0;
  uint64_t chunks_hit = 0;
  uint64_t chunks_loaded = 0;
  uint64_t chunks_stored = 0;
  uint64_t chunks_skipped = 0;  // stores of what was there already
  uint64_t chunks_refused = 0;  // stores without room, or after such
  Bytes bytes_loaded{};         // what was copied, without padding
  Bytes bytes_stored{};
  Bytes bytes_swapped_in{};  // of private allocations, as the two above
  Bytes bytes_swapped_out{};
  std::array<uint64_t, kHooks> failed{};  // answered with an error, late ones among them
  std::array<uint64_t, kHooks> late{};    // whose deadline had passed before they were begun

  uint64_t lookups() const { return lookups_hit + lookups_partial + lookups_missed; }
  Traffic& operator+=(const Traffic& other);
};

// How long things took.
struct Latencies {
  std::array<LatencyHistogram, kHooks> hooks;  // from a request's leaving the ring to its answer
  LatencyHistogram copy_load, copy_store;      // from a copy's submission to its being quiet
  // The ring's: of requests that get an answer, from connectors that say when they asked. Copies': of those that began.
  std::array<LatencyHistogram, kQueues> waits;
};

// What all sessions have done, those that are gone among them.
//
// A session counts for itself, so that a request touches one place only; its counts come here when it ends. Tenants are told apart
// when they were named beforehand; all others are one row, "other", so that what a client brings can't make rows.
// Threads: one.
class Activity {
 public:
  static constexpr std::string_view kOther = "other";

  // `tenants`: those with a row of their own.
  explicit Activity(const std::vector<std::string>& tenants);
  // Those of `tenants` that have none get one, at 0, until there are `most` rows beside kOther. Only for tenants of which nobody has come yet:
  // what was counted as kOther's stays there.
  void Name(const std::vector<std::string>& tenants, size_t most);

  void Ended(std::string_view tenant, SpaceId space, const Traffic& traffic);

  // Rows to which the sessions that live are to be added: tenants by name and kOther last; spaces by number.
  struct Rows {
    std::vector<std::pair<std::string, Traffic>> tenants;
    std::vector<Traffic> spaces;

    void Add(std::string_view tenant, SpaceId space, const Traffic& traffic);
    Traffic Total() const;
  };
  const Rows& ended() const { return ended_; }

  Latencies latencies;

 private:
  Rows ended_;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_ACTIVITY_H_
