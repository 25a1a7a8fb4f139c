#ifndef KVIST_CONNECTOR_SRC_CLIENT_H_
#define KVIST_CONNECTOR_SRC_CLIENT_H_

#include <kvist/kvist.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "connector/src/link.h"
#include "connector/src/registration.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace kvist::connector {

// A kvist_client: the hooks over whatever Link there is, and a keeper thread that sees to it that there is one.
//
// An operation keeps the link on which it began, so operations of a dead daemon end as Unavailable while new ones go to its successor.
// Threads: any.
class Client {
 public:
  // Errors: see kvist_connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const kvist_options& options);
  ~Client();

  absl::Status Lookup(std::span<const ChunkKey> keys, int64_t lease_us, int64_t deadline_us, kvist_hit* hit);
  uint32_t FirstNeeded(uint32_t group, uint32_t chunks) const;
  absl::Status Release(kvist_lease lease);
  absl::StatusOr<kvist_op> Load(const kvist_load_args& args);
  absl::StatusOr<kvist_op> Store(const kvist_store_args& args);
  // timeout_us 0: poll. `result` is always set.
  absl::Status Wait(kvist_op op, uint32_t layers, int64_t timeout_us, kvist_result* result);
  absl::Status Cancel(kvist_op op);

  kvist_connection connection(uint8_t* space_digest) const;
  absl::Status WaitConnected(int64_t timeout_us) const;

 private:
  enum class Kind : uint8_t { kLoad, kStore };
  // How an operation was ended by this side, before the daemon did.
  enum class GivenUp : uint8_t { kNo, kCancelled, kLate };
  struct Op {
    std::shared_ptr<Link> link;
    Link::Ticket ticket;
    Kind kind = Kind::kLoad;
    GivenUp given_up = GivenUp::kNo;
    int64_t deadline_nanos = 0;
    uint32_t generation = 0;  // of the place; odd while in use
  };

  explicit Client(Registration registration) : registration_(std::move(registration)) {}
  std::shared_ptr<Link> link() const;
  int64_t DeadlineNanos(int64_t deadline_us) const;
  absl::Status NoGroup(uint32_t group) const;
  kvist_op Remember(Op op);
  // Forgets an operation; true for the one caller that did: its cell is that caller's alone now.
  bool TakeOp(kvist_op handle);
  std::optional<Op> FindOp(kvist_op handle) const;
  void GiveUp(kvist_op handle, Op* op, GivenUp how);
  // Fills `result` from the operation's progress; takes it when it is over. False: another thread has taken it.
  bool Fill(kvist_op handle, const Op& op, uint64_t progress, kvist_result* result);

  // The keeper: connects, watches the daemon, connects again.
  void Keep();
  void Watch(const std::shared_ptr<Link>& link);
  void SetLink(std::shared_ptr<Link> link, kvist_connection state);
  void StateChanged();
  bool Pause(int64_t nanos);

  Registration registration_;  // `probed` is the keeper's, after Create; the rest doesn't change
  int64_t default_deadline_us_ = 1'000'000;
  UniqueFd stop_;  // eventfd
  std::thread keeper_;
  std::atomic<uint32_t> state_changes_{0};  // a futex: rises when state_ does change

  mutable Mutex mutex_;
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mutex_);
  kvist_connection state_ ABSL_GUARDED_BY(mutex_) = KVIST_RECONNECTING;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::array<uint8_t, 32> digest_ ABSL_GUARDED_BY(mutex_){};
  std::vector<Op> ops_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ops_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_CLIENT_H_
