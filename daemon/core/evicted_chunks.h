#ifndef KVIST_DAEMON_CORE_EVICTED_CHUNKS_H_
#define KVIST_DAEMON_CORE_EVICTED_CHUNKS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvist::core {

// What a policy remembers of chunks that it has evicted (the ghost directory of reference/policy.md): a word each, found by the hash
// of the chunk's name.
//
//   entry (8 bytes) = | hash 32 | word 32, never 0 |      set = 8 entries, one line of the processor's cache
//
// Bounded: of each set the word that was put there first goes. Grows and shrinks by one set at a time (linear hashing), so no call
// pauses. A hash that two names share makes a policy mistake one for the other, which costs a hit at worst.
// Threads: one.
class EvictedChunks {
 public:
  EvictedChunks();

  // Remembers `word` (not 0) of `hash`. Returns the word that had to go for it, or 0.
  uint32_t Put(uint32_t hash, uint32_t word);
  // Takes back what is remembered of `hash`; 0 when nothing is.
  uint32_t Take(uint32_t hash);

  // Asks the processor for what Put and Take of that hash will touch.
  void Prefetch(uint32_t hash) const { __builtin_prefetch(&const_cast<EvictedChunks*>(this)->Of(hash), /*rw=*/1); }

  // Adds or removes one set, if that brings it nearer to room for `entries`. Words that had to go: up to kWays of them, for which
  // forget(word) is called.
  template <class F>
  void ResizeTowards(uint64_t entries, F forget) {
    const uint64_t sets = entries / kWays;
    if (sets > sets_) {
      Split();
    } else if (sets + sets / 4 < sets_ && sets_ > 1) {
      for (const uint32_t word : Merge()) {
        if (word != 0) forget(word);
      }
    }
  }

  uint64_t capacity() const { return sets_ * kWays; }
  uint64_t memory_bytes() const { return segments_.size() * kSetsPerSegment * sizeof(Set); }

  static constexpr uint32_t kWays = 8;
  struct Entry {
    uint32_t hash = 0;
    uint32_t word = 0;  // 0: free
  };

 private:
  // From the one that was put first to the newest; free ones last.
  struct alignas(64) Set {
    std::array<Entry, kWays> entries;
  };
  static_assert(sizeof(Set) == 64 && sizeof(Entry) <= 16, "a ghost takes at most 16 bytes (issue 5), a set one cache line");
  static constexpr uint64_t kSetsPerSegment = 256;

  Set& At(uint64_t set) { return segments_[set / kSetsPerSegment][set % kSetsPerSegment]; }
  // The set of a hash: its low bits, one more of them where the set has been split already.
  Set& Of(uint32_t hash) {
    const uint64_t wide = hash & (2 * round_ - 1);
    return At(wide < sets_ ? wide : hash & (round_ - 1));
  }
  void Split();
  std::array<uint32_t, kWays> Merge();

  std::vector<std::unique_ptr<Set[]>> segments_;
  uint64_t sets_ = 1;
  uint64_t round_ = 1;  // a power of two: round_ <= sets_ < 2 * round_
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_EVICTED_CHUNKS_H_
