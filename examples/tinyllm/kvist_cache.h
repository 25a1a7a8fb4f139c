#ifndef KVIST_EXAMPLES_TINYLLM_KVIST_CACHE_H_
#define KVIST_EXAMPLES_TINYLLM_KVIST_CACHE_H_

#include <kvist/client.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/tinyllm/device_pages.h"
#include "examples/tinyllm/page_pool.h"
#include "examples/tinyllm/paged_memory.h"

namespace tinyllm {

// kvist for this engine: the four hooks, in the words of an engine. All of kvist that tinyllm uses is in this class and in
// describe_memory.h; engine.cc shows where in an engine's life they are called.
//
//   lookup  a sequence is admitted             FindHit
//   load    its hit is copied into new pages   StartLoad, then PollLoad once a step until it isn't pending
//   store   a step has filled chunks           StoreFilled; Poll once a step
//   wait    there is nothing else to do        PollLoad with a timeout; Flush before pages are needed for others
//   swap    a sequence is preempted            SwapOut what is in no full chunk; StartSwapIn when it is admitted again
//
// One rule keeps copies and computing apart: a copy under way holds a reference to each page that it touches. Whatever
// happens to the sequence, such a page isn't given to another before the copy has ended.
//
// Nothing here can fail a request: what kvist doesn't deliver is computed. Every wait is bounded.
// Threads: one, the engine's.
class KvistCache {
 public:
  struct Options {
    std::string socket;                // empty: kvist's default
    bool on_gpu = false;               // for kvist the pages are a GPU's (device_pages.h)
    std::string instance = "tinyllm";  // names this engine; another running one needs another name
    absl::Duration lookup_deadline =
        absl::Milliseconds(20);                         // a lookup is answered from memory; later than that it is a miss
    absl::Duration copy_deadline = absl::Seconds(1);    // of a load, and of a store; a longer one survives a busier machine
    absl::Duration lease = absl::Seconds(5);            // more than the deadlines of a lookup and a load together
    absl::Duration connect_timeout = absl::Seconds(1);  // how long to wait for kvistd at the start; it may come later, too
    std::function<absl::Time()> now = absl::Now;        // by which swaps are timed
  };

  enum class LoadState { kPending, kLoaded, kFailed };

  // What kvist knows and does for one sequence.
  class Sequence {
   public:
    // Of its last hit: what kvist had to read from a tier below DRAM.
    size_t slow_tokens() const { return slow_tokens_; }

   private:
    friend class KvistCache;
    kvist::Chain chain_;
    size_t chained_tokens_ = 0;  // of the sequence are in the chain
    kvist::Hit hit_;             // of the last FindHit; its lease lives until the load has ended
    kvist_op load_ = 0;
    LoadState load_state_ = LoadState::kPending;
    kvist::Allocation swapped_;  // KV that was taken out and not brought back
    kvist_op swap_in_ = 0;
    bool swapped_in_ = false;
    size_t slow_tokens_ = 0;
    uint32_t offered_chunks_ = 0;  // were loaded from kvist or given to a store
  };

  // Opens a session as scheduler and one as worker 0. Succeeds also while kvistd is away: then everything is a miss until it
  // comes. Errors: those of DevicePages, where it is asked for, and of kvist_connect, e.g. a kvistd that refuses this space.
  static absl::StatusOr<std::unique_ptr<KvistCache>> Create(const Options& options, const ModelConfig& config,
                                                            const PagedMemory& memory, PagePool& pool);

  Sequence NewSequence() const;

  // lookup: how many tokens, from the start, of `tokens` kvist can load. They stay loadable until StartLoad or DropHit.
  size_t FindHit(Sequence& sequence, std::span<const Token> tokens);
  void DropHit(Sequence& sequence) { sequence.hit_ = {}; }

  // load: starts copying chunks [first_chunk, all of the hit) into `pages`; false: it couldn't start, compute.
  bool StartLoad(Sequence& sequence, uint32_t first_chunk, std::span<const PageId> pages);
  // wait: until the load, and the swap-in beside it, have ended, at most `timeout`; at once by default. What it says is of the load.
  LoadState PollLoad(Sequence& sequence, absl::Duration timeout = absl::ZeroDuration());

  // swap: takes the KV in `pages`, at most a chunk's, out into room of the sequence's own and waits for it, at most `timeout`.
  // False: it isn't kept. Either way the pages are the engine's again.
  bool SwapOut(Sequence& sequence, std::span<const PageId> pages, absl::Duration timeout);
  // Starts bringing it back into as many pages; those that are KVIST_NO_PAGE are not wanted. False: it couldn't start, compute.
  bool StartSwapIn(Sequence& sequence, std::span<const PageId> pages);
  // Whether it has come back; for after PollLoad. Once.
  bool SwappedIn(Sequence& sequence) { return std::exchange(sequence.swapped_in_, false); }
  void DropSwapped(Sequence& sequence) { sequence.swapped_ = {}; }
  // What taking so many pages out and bringing them back takes, judged by the swaps so far.
  absl::Duration SwapTime(size_t pages) const;

  // store: starts copying the chunks that have become full. `tokens` are those whose KV is in `pages`.
  void StoreFilled(Sequence& sequence, std::span<const Token> tokens, std::span<const PageId> pages);

  // Gives up the references of copies that have ended. Never waits.
  void Poll();
  // kvistd learns from it what loading from its disk is worth.
  void ReportPrefill(size_t first, size_t tokens, absl::Duration took) {
    scheduler_.ReportPrefill(static_cast<uint32_t>(first), static_cast<uint32_t>(tokens), absl::ToInt64Microseconds(took));
  }
  // Waits until all that is stored would survive kvistd, at most `timeout`; how many chunks that are.
  absl::StatusOr<uint32_t> MakeDurable(absl::Duration timeout);
  // wait: until no store is under way, at most `timeout`, then cancels the rest. Afterwards no store holds a page.
  void Flush(absl::Duration timeout);

  uint32_t chunk_tokens() const { return chunk_tokens_; }
  bool connected() const { return scheduler_.connection() == KVIST_CONNECTED && worker_.connection() == KVIST_CONNECTED; }
  // Until both sessions are served, at most `timeout`.
  bool WaitConnected(absl::Duration timeout);

  struct Stats {
    uint64_t lookups = 0, hit_tokens = 0;
    uint64_t loads = 0, loads_failed = 0, chunks_loaded = 0;
    uint64_t swaps_out = 0, swaps_in = 0;  // that went well
    uint64_t stores = 0, chunks_stored = 0, chunks_skipped = 0, chunks_refused = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Copy {
    enum class Kind { kLoad, kStore, kSwapOut, kSwapIn };
    kvist_op op;
    Kind kind;
    bool awaited;               // by its sequence, through PollLoad; others are Poll's
    std::vector<PageId> pages;  // referenced; empty once given up
  };

  KvistCache(const Options& options, uint32_t chunk_tokens, std::unique_ptr<DevicePages> device, PagePool& pool)
      : options_(options), chunk_tokens_(chunk_tokens), device_(std::move(device)), pool_(pool) {}
  // What a copy out of pages waits for: on a GPU, that they are there. Nothing: they can't get there.
  std::optional<kvist::After> AfterWritten(std::span<const PageId> pages);
  // What any copy waits for: on a GPU, what was done to its pages before, e.g. for a store that was given up.
  kvist::After AfterStream() const;
  void Hold(Copy copy);
  LoadState PollCopy(kvist_op op, absl::Duration timeout);
  void GiveUpPages(Copy& copy);
  void CountEnd(const Copy& copy, const kvist_result& result);
  size_t pages_per_chunk() const { return chunk_tokens_ / kPageTokens; }

  const Options options_;
  const uint32_t chunk_tokens_;
  const std::unique_ptr<DevicePages> device_;  // null: the pages are the CPU's
  PagePool& pool_;
  std::vector<Copy> copies_;  // under way
  absl::Duration swapping_;   // what swapping out has taken
  size_t pages_swapped_ = 0;
  Stats stats_;
  kvist::Client scheduler_, worker_;  // last: they end first
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_KVIST_CACHE_H_
