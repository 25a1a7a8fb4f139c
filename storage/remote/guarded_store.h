#ifndef KVIST_STORAGE_REMOTE_GUARDED_STORE_H_
#define KVIST_STORAGE_REMOTE_GUARDED_STORE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/remote/breaker.h"
#include "storage/remote/in_flight.h"
#include "storage/remote/rate_limit.h"
#include "storage/remote/remote_store.h"

namespace kvist::remote {

struct GuardOptions {
  Limits limits;
  Breaker::Options breaker;
  RateLimit::Options rate;  // of puts and gets together, by the room that they bring
  // No batch has longer, whatever its deadline. Larger: a hung store binds slots longer
  absl::Duration time_max = absl::Seconds(30);
  // A deadline that left less time says nothing of the store when it is missed
  absl::Duration patience = absl::Milliseconds(100);

  absl::Status Validate() const;  // names the field
};

// Keeps what is slow, dead or full beyond the node from being felt within: limits, deadlines, a breaker and a rate limit before a store.
//
// What a batch meets, in this order: its names; its deadline; the limits (ResourceExhausted); the breaker (Unavailable, at once); the rate
//   limit, for which it waits here until its deadline, or until the breaker opens; the store. Questions (IsQuestion) and removals don't wait for the rate.
// The breaker counts batches: Unavailable, PermissionDenied and missed deadlines are failures, a miss is an answer.
// Threads: any; it has one of its own, which waits for the rate.
class GuardedStore final : public RemoteStore {
 public:
  // `store` belongs to it. Errors: InvalidArgument, of the options.
  static absl::StatusOr<std::unique_ptr<GuardedStore>> Create(std::unique_ptr<RemoteStore> store,
                                                              const GuardOptions& options);
  ~GuardedStore() override;

  absl::Status Submit(Batch batch, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const override { return in_flight_.load(); }

  struct Figures {
    Breaker::State breaker = Breaker::State::kClosed;
    uint64_t opened = 0;        // so often
    uint64_t refused_open = 0;  // batches
    uint64_t refused_full = 0;
    uint64_t batches = 0;                 // accepted
    std::array<uint64_t, 17> outcomes{};  // operations that ended, by absl::StatusCode
  };
  Figures figures() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    Batch batch;
    Done done;
    Breaker::Ticket ticket;
  };

  GuardedStore(std::unique_ptr<RemoteStore> store, const GuardOptions& options);
  // Gives it to the store; an error when the store doesn't take it, then `done` isn't used up.
  absl::Status Pass(Batch batch, std::shared_ptr<Done> done, Breaker::Ticket ticket);
  void Judge(const std::vector<Outcome>& outcomes, bool patient, Breaker::Ticket ticket) ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(Waiting waiting, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitForRate() ABSL_LOCKS_EXCLUDED(mutex_);

  const GuardOptions options_;
  InFlight in_flight_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  Breaker breaker_ ABSL_GUARDED_BY(mutex_);
  RateLimit rate_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // for the rate, in their order
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Figures figures_ ABSL_GUARDED_BY(mutex_);
  std::thread rate_thread_;
  // Last: its end ends all that is on its way, which comes here, and may be heard by who Submits once more.
  const std::unique_ptr<RemoteStore> store_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_GUARDED_STORE_H_
