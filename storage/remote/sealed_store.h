#ifndef KVIST_STORAGE_REMOTE_SEALED_STORE_H_
#define KVIST_STORAGE_REMOTE_SEALED_STORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/sealed_object.h"

namespace kvist::remote {

// Shards in and out of a remote store: names them, seals what goes, and believes nothing of what comes that isn't whole and the one that was
// asked for. What the daemon sees of a remote tier.
//
// Lifecycle, deadlines, errors and who owns spans: as RemoteStore says, for each call.
// Threads: any. A put computes on the caller's thread (and with encryption copies), a get on the store's, before `done` is called.
class SealedStore {
 public:
  // `store` belongs to it: a GuardedStore, but for tests.
  SealedStore(std::unique_ptr<RemoteStore> store, const ObjectSealer::Options& options)
      : sealer_(options), store_(std::move(store)) {}

  struct Put {
    Identity identity;
    ObjectSealer::Said said;
    std::span<const std::byte> body;  // the caller's, unchanged, until it is done
  };
  using PutDone = std::function<void(std::vector<absl::Status> statuses)>;
  [[nodiscard]] absl::Status Submit(std::span<const Put> puts, absl::Time deadline, PutDone done);

  struct Get {
    Identity identity;
    uint64_t epoch_min = 0;     // what is older isn't wanted
    std::span<std::byte> into;  // the store's until it is done. Only a good one says what is in it
  };
  struct Got {
    absl::Status status;
    Verdict verdict = Verdict::kMissing;  // when the status is OK
    Bytes bytes{};                        // of the body, when it is good
    ObjectSealer::Said said{};
  };
  using GetDone = std::function<void(std::vector<Got> got)>;
  [[nodiscard]] absl::Status Submit(std::span<const Get> gets, absl::Time deadline, GetDone done);

  // Whether there is something: `status`, and `found` kYes or kNo. Not whether it is good.
  [[nodiscard]] absl::Status Exists(std::span<const Identity> identities, absl::Time deadline, Done done);
  // `body_max`: as long as one of them may be.
  [[nodiscard]] absl::Status Remove(std::span<const Identity> identities, Bytes body_max, absl::Time deadline, Done done);

  // What gets have found, by verdict.
  std::array<uint64_t, kVerdicts> verdicts() const;
  Load load() const { return store_->load(); }

 private:
  const ObjectSealer sealer_;
  std::array<std::atomic<uint64_t>, kVerdicts> verdicts_{};
  std::unique_ptr<RemoteStore> store_;  // last: its end calls back
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_SEALED_STORE_H_
