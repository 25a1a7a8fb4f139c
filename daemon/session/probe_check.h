#ifndef KVIST_DAEMON_SESSION_PROBE_CHECK_H_
#define KVIST_DAEMON_SESSION_PROBE_CHECK_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/kv_memory.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::session {

// Compares the first and last page of every layer of a group with the pattern of a nonce: proof that the engine's own indexing and its
// description name the same bytes. What is described may be large, so it is done in parts.
//
// Lifecycle: GoOn until it says that all was right, or an error.
// Threads: one.
class ProbeCheck {
 public:
  ProbeCheck(std::shared_ptr<const cuda::KvMemory> memory, GroupId group, uint64_t nonce);

  // Takes what it compares from `*left`, and stops when nothing is. True: all was compared, and is right.
  // Errors: FailedPrecondition  says which page differs, and in which byte first. Those of EngineRegion::Read.
  absl::StatusOr<bool> GoOn(Bytes* left);

  // It holds so much of a page at a time, twice.
  static constexpr Bytes kPiece{1 << 20};

 private:
  const cuda::KvLayout& layout() const { return memory_->layouts[group_.value]; }

  std::shared_ptr<const cuda::KvMemory> memory_;
  GroupId group_;
  uint64_t nonce_;
  uint32_t first_ = 0;  // layer of the group among all groups'
  uint32_t layer_ = 0;  // of the group, as are the two below: what comes next
  bool last_page_ = false;
  Bytes at_{};
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_PROBE_CHECK_H_
