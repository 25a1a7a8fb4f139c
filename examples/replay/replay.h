#ifndef KVIST_EXAMPLES_REPLAY_REPLAY_H_
#define KVIST_EXAMPLES_REPLAY_REPLAY_H_

#include <kvist/client.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "examples/replay/hook_times.h"
#include "examples/replay/page_memory.h"
#include "examples/replay/trace.h"

namespace kvist::replay {

// What came of a replay. Counts are of blocks unless they say otherwise.
struct Outcome {
  uint64_t requests = 0;
  uint64_t blocks = 0;  // listed by the requests, full or not
  uint64_t full_blocks = 0;
  uint64_t hit_blocks = 0;  // loaded: leading full blocks that were there on arrival
  uint64_t stored_blocks = 0;
  uint64_t skipped_blocks = 0;  // to be stored, but there already
  uint64_t refused_blocks = 0;  // not stored for want of room
  uint64_t wrong_bytes = 0;
  uint64_t failed_hooks = 0;  // calls that ended neither well nor in a miss
  HookTimes lookup;
  HookTimes load;
  HookTimes store;
  HookTimes release;

  double hit_ratio() const { return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks); }
  bool fine() const { return wrong_bytes == 0 && failed_hooks == 0; }
};

// An engine without a model: it asks, loads, checks, "computes" and stores as the requests of a trace make it. Its scheduler and its
// only worker are two sessions of one instance.
//
// A request: lookup with a lease -> load of the hit, every byte checked -> store of the other full blocks -> hint -> release.
// Computing takes as long as Options says. Requests that are longer than the page memory are worked through in batches; hits that are longer
// than the lease budget in parts, each with a lookup of its own that says what the engine has by then. A request's blocks past the 4,096th, which is what one
// lookup may ask for, are misses and not stored.
//
// Threads: one.
class Replay {
 public:
  struct Options {
    std::string socket;
    uint64_t block_bytes = 64 << 10;
    uint64_t full_blocks_max = 1;  // of one request
    // A store is offered again for so long where kvistd has no room yet: it makes some while an engine computes, which takes no time here.
    int64_t store_patience_us = 0;
    // There is a disk, which kvistd measures for a moment after its start: the first request waits for it, as for an engine's model.
    bool await_disk = false;
    // Tokens a second that the engine computes, a part of 8,192 at a time, each stored when it is computed. 0: it takes no time, and all is one part.
    uint64_t prefill_rate = 0;
  };

  // Errors: Unavailable  no kvistd serves at that socket.  FailedPrecondition  it refuses this engine. Others: no page memory.
  static absl::StatusOr<std::unique_ptr<Replay>> Create(const Options& options);

  // One request. Failures are counted, and the first ones printed to stderr.
  void Run(const Request& request);

  const Outcome& outcome() const { return outcome_; }

 private:
  Replay(std::unique_ptr<PageMemory> pages, const Options& options)
      : pages_(std::move(pages)), store_patience_us_(options.store_patience_us), prefill_rate_(options.prefill_rate) {}
  // What kvistd has of `keys`, or as much of it as can be leased past the first `have`; `there`: all of it.
  Hit LookUp(std::span<const kvist_key> keys, uint32_t have, uint32_t* there);
  bool Load(const Request& request, std::span<const kvist_key> keys, const Lease& lease, uint32_t first, uint32_t count);
  // Computes and stores [first, count), as far as it goes.
  void Prefill(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count);
  // Tells why the answer before the prompt ended, if the trace does.
  void Hint(const Request& request, std::span<const kvist_key> keys);
  bool Store(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count);
  kvist_result StoreOnce(const kvist_store_args& args, uint64_t block_bytes, uint32_t count);
  kvist_result Await(Client& client, kvist_op op);
  void Check(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count);
  void Failed(absl::string_view hook, kvist_status status, absl::string_view why);

  Outcome outcome_;
  std::unique_ptr<PageMemory> pages_;  // outlives the worker
  const int64_t store_patience_us_;
  const uint64_t prefill_rate_;
  Client scheduler_;
  Client worker_;
  uint64_t complaints_ = 0;
  bool pages_lost_ = false;  // a load never gave its pages back: nothing can be done with them any more
};

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_REPLAY_H_
