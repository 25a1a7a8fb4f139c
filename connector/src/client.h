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
#include "storage/base/clock.h"
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
  ~Client();  // End
  // Gives up what is in flight, waits until no copy touches the pages, within the default deadline, and ends the session; once.
  // Errors: DeadlineExceeded  a load may go on all the same.
  absl::Status End();

  absl::Status Lookup(std::span<const ChunkKey> keys, uint32_t have, int64_t lease_us, int64_t deadline_us, kvist_hit* hit);
  absl::StatusOr<kvist_op> LookupStart(std::span<const ChunkKey> keys, uint32_t have, int64_t lease_us, int64_t deadline_us);
  // nullopt: not known yet.
  std::optional<absl::Status> LookupResult(kvist_op op, int64_t timeout_us, kvist_hit* hit);
  absl::StatusOr<kvist_op> WhereStart(std::span<const ChunkKey> keys, uint32_t group, int64_t deadline_us);
  // As LookupResult; tiers[i] gets the kvist_tier bits of the i-th key that was asked for.
  std::optional<absl::Status> WhereResult(kvist_op op, int64_t timeout_us, std::span<uint8_t> tiers);
  uint32_t FirstNeeded(uint32_t group, uint32_t chunks) const;
  absl::Status Release(kvist_lease lease);
  absl::StatusOr<kvist_op> Load(const kvist_load_args& args);
  absl::StatusOr<kvist_op> Store(const kvist_store_args& args);
  absl::Status Flush(int64_t deadline_us, uint32_t* chunks);
  // kPin or kUnpin.
  absl::Status Pin(shm::Opcode opcode, std::span<const ChunkKey> keys, int64_t deadline_us, uint32_t* chunks);
  absl::Status ReportPrefill(uint32_t first_token, uint32_t token_count, int64_t took_us);
  absl::Status Hint(std::span<const ChunkKey> keys, const kvist_hint_args& args);
  absl::StatusOr<kvist_allocation> Allocate(uint32_t group, uint32_t chunks, int64_t deadline_us);
  absl::Status Free(kvist_allocation allocation);
  absl::StatusOr<kvist_op> SwapOut(const kvist_swap_args& args) { return Swap(args, Kind::kStore); }
  absl::StatusOr<kvist_op> SwapIn(const kvist_swap_args& args) { return Swap(args, Kind::kLoad); }
  // timeout_us 0: poll. `result` is always set.
  absl::Status Wait(kvist_op op, uint32_t layers, int64_t timeout_us, kvist_result* result);
  absl::Status Cancel(kvist_op op);
  absl::Status WaitOnStream(kvist_op op, uint32_t layers, void* stream);
  absl::Status PagesReady(kvist_op op, uint32_t layers, void* stream);
  absl::Status BusBusy(int64_t for_us);

  kvist_connection connection(uint8_t* space_digest) const;
  absl::Status WaitConnected(int64_t timeout_us) const;

 private:
  enum class Kind : uint8_t { kLookup, kWhere, kLoad, kStore };  // the latter two: into the engine's pages, or out of them
  static bool IsCopy(Kind kind) { return kind == Kind::kLoad || kind == Kind::kStore; }
  static shm::Opcode OpcodeOf(Kind question) {
    return question == Kind::kLookup ? shm::Opcode::kLookup : shm::Opcode::kWhere;
  }
  // How an operation was ended by this side, before the daemon did.
  enum class GivenUp : uint8_t { kNo, kCancelled, kLate };
  struct Op {
    std::shared_ptr<Link> link;
    Link::Ticket ticket;
    Kind kind = Kind::kLoad;
    GivenUp given_up = GivenUp::kNo;
    int64_t deadline_nanos = 0;
    bool awaited_by_stream = false;
    bool by_layers = false;   // KVIST_AFTER_LAYERS
    uint32_t chunks = 0;      // that it is about: the keys of a lookup, or what is to be copied
    uint32_t generation = 0;  // of the place; odd while in use
  };

  explicit Client(Registration registration) : registration_(std::move(registration)) {}
  std::shared_ptr<Link> link() const;
  int64_t DeadlineNanos(int64_t deadline_us, int64_t now_nanos = MonotonicNanos()) const;
  static absl::Status Away();

  // The answer of a request that moves no bytes.
  struct Reply {
    absl::Status status;
    uint32_t chunks = 0;
    uint32_t coming = 0;
    uint64_t handle = 0;
    uint32_t asked = 0;  // keys; of Hear
  };
  // Reads the answer of a request that has ended, and gives its cell back. `tiers`: of a where.
  static Reply Read(Link& link, Link::Ticket ticket, std::span<uint8_t> tiers = {});
  // Hears the answer to a question that was begun, at most timeout_us later. nullopt: not known yet.
  std::optional<Reply> Hear(kvist_op op, Kind kind, int64_t timeout_us, std::span<uint8_t> tiers = {});
  // The answer of a lookup that asked for so many chunks.
  kvist_hit HitOf(const Reply& reply, uint32_t asked) const;
  static absl::Status NoAnswer();
  // Asks and waits for the answer. Completes the entry, as Begin does, where it lies: each copy of it would load wider than its fields were just
  // written, and so wait until they have left the store buffer. One copy is left, into the ring.
  Reply Call(shm::Entry* entry, std::span<const ChunkKey> keys, int64_t deadline_us);
  // Says what has no answer, if there is somebody to hear it.
  void Tell(shm::Entry entry, std::span<const ChunkKey> keys);

  absl::Status NoGroup(uint32_t group) const;
  absl::Status CheckPages(uint32_t group, uint64_t chunks, const uint32_t* pages, size_t page_count) const;
  absl::Status CheckLayers(uint32_t group, uint32_t first_layer, uint32_t layer_count) const;
  absl::StatusOr<kvist_op> Swap(const kvist_swap_args& args, Kind kind);
  // What a copy waits for before it touches the pages.
  struct After {
    int32_t what = KVIST_AFTER_NOTHING;
    void* stream = nullptr;
  };
  absl::StatusOr<kvist_op> Begin(shm::Entry* entry, Kind kind, std::span<const ChunkKey> keys,
                                 std::span<const uint32_t> pages, int64_t deadline_us, After after);
  kvist_op Remember(Op op);
  // Forgets an operation; true for the one caller that did: its cell is that caller's alone now.
  bool TakeOp(kvist_op handle);
  std::optional<Op> FindOp(kvist_op handle) const;
  void GiveUp(kvist_op handle, Op* op, GivenUp how);
  // Gives up what streams wait for and is late. Whether streams wait for anything else.
  bool GiveUpLate();
  // The keeper has something to look after: from now on it looks every 20 ms, until there is nothing.
  void HaveKeeperLook();
  absl::StatusOr<Op> CopyUnderWay(kvist_op handle) const;
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
  UniqueFd stop_;                          // eventfd
  UniqueFd wake_;                          // eventfd: see HaveKeeperLook
  std::atomic<bool> keeper_looks_{false};  // without being woken
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
