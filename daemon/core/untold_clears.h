#ifndef KVIST_DAEMON_CORE_UNTOLD_CLEARS_H_
#define KVIST_DAEMON_CORE_UNTOLD_CLEARS_H_

#include <set>
#include <utility>

#include "storage/base/ids.h"

namespace kvist::core {

// What was cleared before the disk had told of all that it has: when it tells of such a chunk later, that is gone. Whole spaces are noted by
// themselves (Space::cleared). Threads: one.
class UntoldClears {
 public:
  // All spaces, also those that weren't known yet.
  void ClearedAll() { all_ = true; }
  void Cleared(SpaceId space, const ChunkKey& key) { keys_.emplace(space, key); }
  // With what hangs on it.
  void ClearedPrompt(SpaceId space, const ChunkKey& key) {
    keys_.emplace(space, key);
    prompts_.emplace(space, key);
  }

  bool Takes(SpaceId space, const ChunkKey& key) const { return all_ || keys_.contains({space, key}); }
  // Parents are told of before what hangs on them: a child that is taken for its parent's sake is noted as a prompt, too, for its own children.
  bool TakesChildrenOf(SpaceId space, const ChunkKey& key) const { return prompts_.contains({space, key}); }

  // The disk has told of all; what comes of a space that was cleared whole stays gone.
  void AllTold() {
    keys_.clear();
    prompts_.clear();
  }

 private:
  bool all_ = false;
  std::set<std::pair<SpaceId, ChunkKey>> keys_;
  std::set<std::pair<SpaceId, ChunkKey>> prompts_;  // of keys_, those that take what hangs on them along
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_UNTOLD_CLEARS_H_
