#ifndef KVIST_STORAGE_REMOTE_REMOTE_STORE_H_
#define KVIST_STORAGE_REMOTE_REMOTE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/base/units.h"

namespace kvist::remote {

enum class Kind : uint8_t { kPut, kGet, kExists, kRemove };

// One object in a batch. An object is a head, which is short, and a body; what they mean is sealed_object.h's, a store moves bytes.
struct Operation {
  std::string name;  // letters, digits, '-', '_', '.'; at most kNameMax of them
  // kPut: what is written. The caller's, unchanged, until the batch is done.
  std::span<const std::byte> head{};
  std::span<const std::byte> body{};
  // kGet: where it goes; the object's first bytes are the head's. The store's until the batch is done, whatever comes of it: then, and
  // also when it was given up by its deadline, nothing touches them any more. A longer object is kTooLong.
  std::span<std::byte> head_into{};
  std::span<std::byte> body_into{};
  // kRemove: how long the body may be at most; a store that keeps long ones in parts then knows their names.
  Bytes body_max{};

  // What it counts for among the bytes in flight.
  Bytes bytes() const { return {head.size() + body.size() + head_into.size() + body_into.size()}; }
};
inline constexpr size_t kNameMax = 128;

struct Batch {
  Kind kind = Kind::kGet;
  std::vector<Operation> operations;
  absl::Time deadline;  // on the monotonic clock
};

// What came of an operation. `status`:
//   OK                 put: it is there. get, exists: see `found`. remove: it isn't there.
//   Unavailable        the store can't be reached, or ended the connection, or wants to be asked later.
//   DeadlineExceeded   nothing was heard in time. A put may be there or not, or half: which is a miss.
//   ResourceExhausted  the store has no room.
//   PermissionDenied, FailedPrecondition, InvalidArgument  the store doesn't do that for us: a setting has to change.
//   Cancelled          this store was destroyed.
enum class Found : uint8_t {
  kNo,       // an ordinary miss, and no error
  kYes,      //
  kTooLong,  // there is one, but there is no room for it
  kInParts,  // there is one, but parts of it are missing
  kNotOurs,  // there is something else under its name
};
struct Outcome {
  absl::Status status;
  Found found = Found::kNo;  // get, exists
  Bytes head{};              // get: so much was read; less than there was room for when the object is shorter
  Bytes body{};
};
using Done = std::function<void(std::vector<Outcome> outcomes)>;

// The most that is accepted at once; what is beyond is refused. Larger: more memory of the pool is bound to a slow store.
struct Limits {
  uint32_t operations = 4096;
  Bytes bytes = MiB(256);
};

// What stands in a store now, and what has gone through it.
struct Load {
  uint64_t operations = 0;
  uint64_t bytes = 0;
};

// A store beyond the node: Redis, S3, a directory that nodes share.
//
// Lifecycle of a batch: Submit -> OK -> `done` once, when all of its operations have an outcome, in their order; at the latest a moment
//   after the deadline, or in the store's destructor, with Cancelled.
// Threads: Submit from any, blocks on nothing and nobody (a lock for moments). `done` comes from a thread of the store, or the one that destroys
//   it; never from within Submit. It may Submit, which is refused while the store is destroyed; must not destroy the store; and delays the other
//   batches while it runs.
// Errors of Submit, then `done` is never called: ResourceExhausted  beyond the limits, at once.  Unavailable  not asked, since the store didn't
//   answer lately (guarded_store.h), or is being destroyed.  InvalidArgument  a name, no operation.  DeadlineExceeded  it has passed already.
class RemoteStore {
 public:
  virtual ~RemoteStore() = default;

  [[nodiscard]] virtual absl::Status Submit(Batch batch, Done done) = 0;
  virtual Load load() const = 0;
};

// Whether somebody's lookup waits for it, so that no store has it wait for bytes of others: whether objects are there, and gets that have room
// for kQuestionBytes in all. Removals move as little, but come by thousands with a clear, and nobody waits for them.
bool IsQuestion(const Batch& batch);
inline constexpr Bytes kQuestionBytes = KiB(4);

// Whether there is an operation, and the names are names.
[[nodiscard]] absl::Status ValidateNames(const Batch& batch);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REMOTE_STORE_H_
