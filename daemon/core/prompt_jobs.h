#ifndef KVIST_DAEMON_CORE_PROMPT_JOBS_H_
#define KVIST_DAEMON_CORE_PROMPT_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "daemon/core/effects.h"
#include "daemon/core/events.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::core {

// What a job on a prompt, or a clear of one tier, goes on with: its own copy of the keys, and how far it has come. Each step goes through something in slices, and
// the next one begins when it is through.
//
//   clear: kKeys    hides the prompt's chunks, each with its row on disk, as far as its event hasn't
//          kOrphans and what hangs on hidden ones, wherever it lies: passes over the whole index, there and back, until one finds nothing
//          kPins    ends the pins of what is hidden
//          kDurable waits until no restart finds any of it, and no node in the remote store: what that couldn't be told is tried again,
//                   and others have their turn
//   clear of one tier: kKeys    drops its copies, the last chunk first; kDurable waits until no restart finds any of it
//   to disk: kKeys    writes what isn't there yet
//            kWritten waits for that
//            kSettle  frees slots, the last chunk first
//   to a remote store: kKeys asks it for the prompt, a part after the other, and begins writes of what isn't there yet,
//                      kSettle waits for each and frees slots, the last chunk first
//   from disk: kKeys   keeps what of the prompt there is room for, from its first chunk on, so that reading one doesn't evict another
//              kRead   begins reads, the last chunk first; where engines wait for slots that only it can give, it leaves the rest
//              kSettle waits for each, frees its places on disk, and keeps it no longer
//   from disk to a remote store: kKeys    asks it for the prompt as above, and keeps what isn't there yet, as far as there is room
//                                kRead    begins reads, the last chunk first
//                                kWritten begins writes, the last chunk first
//                                kSettle  waits for each, frees its slots if it has only passed through them, and its places on disk
//   from a remote store: kKeys    asks it for the prompt, a part after the other, and keeps what is there as from disk
//                        kRead    begins reads, the last chunk first
//                        kWritten to disk: begins writes, the last chunk first
//                        kSettle  waits for each, and keeps it no longer
//                        kForget  has the store forget it
//                        kDurable waits until it has
//   encoding on disk: kKeys keeps some of the prompt, reads what isn't in slots, writes it again and lets it go, and so on
struct PromptJob {
  enum class Step : uint8_t { kKeys, kOrphans, kPins, kDurable, kWritten, kRead, kSettle, kForget };
  // What a move to disk has found for one key in one group.
  enum class Item : uint8_t { kNothing, kAlready, kLeft, kToMove };
  struct Kept {
    ChunkIndex chunk;
    bool moves;  // or it is in slots already, and stays as it is; encoding on disk: its write has begun
    bool was_in_slots = false;
  };

  std::vector<ChunkKey> keys = {};
  MoveAsked move = {};           // of a move; without its keys
  Tier recodes = Tier::kRemote;  // of one that encodes: where, and how
  uint8_t method = 0;
  bool recoding = false, recoded = false;  // in a remote store: whether it has begun, and has ended
  bool begun = false;                      // a job that may have to wait before its first step has taken it
  Step step = Step::kKeys;
  size_t next = 0;  // in what the step goes through: items [key * groups + group], places of the index, `kept`
  // Clear.
  uint64_t hiding = 0;  // ChunksHidden without a ClearKept, and what the remote store is to forget and hasn't
  std::vector<ChunkKey> to_forget = {};  // by it, beside the prompt's own
  std::vector<ChunkKey> again = {};      // what it couldn't be told
  absl::Time again_at = absl::InfinitePast();
  absl::Duration again_after = absl::ZeroDuration();  // the last time that it couldn't
  ChunkIndex places = 0;                              // that this pass goes through
  bool backwards = false;
  uint64_t found = 0;   // by this pass
  uint64_t pin = 0;     // those up to this number are done
  bool untold = false;  // the disk hadn't told of all it has when this was asked for
  ChunkRef above = {};  // of DRAM, of a space: what the one that went last hung on
  bool of_tier = false;
  uint64_t since = 0;  // of one tier: what came there from this one on stays
  // To disk.
  std::vector<Item> items = {};
  uint64_t writes = 0;  // it waits for those that were begun before this one
  // From disk.
  std::vector<Kept> kept = {};
  // Encoding there: the next of `kept` that is looked at, and whether looking at those before it has changed anything.
  size_t look = 0;
  bool moves_on = false;
  Bytes kept_bytes{};
  // From or to a remote store: it has been asked and hasn't answered.
  bool asking = false;
  uint32_t vain = 0;  // asked so many times in a row
  // To there: keys before `told` were asked for, those from `told_from` on last; what of these it has; Space::remote_losses before the first.
  size_t told_from = 0, told = 0;
  std::vector<std::vector<bool>> there = {};  // [group][key - told_from]; empty: none
  uint64_t losses = 0;
  // From there: what it keeps, for not all groups have moved.
  std::set<ChunkKey> left_there = {};
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PROMPT_JOBS_H_
