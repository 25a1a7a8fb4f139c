#ifndef KVIST_STORAGE_REMOTE_S3_STORE_H_
#define KVIST_STORAGE_REMOTE_S3_STORE_H_

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/remote/in_flight.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/s3_options.h"
#include "storage/remote/s3_request.h"

namespace kvist::remote {

// Objects in a bucket of S3, or of what speaks its language: one object each, head and body one behind the other, named prefix + name.
//
// Long ones are read by ranges side by side, and written by multipart: there or not, never half. One thread with libcurl's multi interface; a
//   request that is given up is taken out of it, after which nothing touches its spans.
// Threads: Submit from any; `done` on the store's one. A resolver that hangs keeps libcurl's thread, not this one.
class S3Store final : public RemoteStore {
 public:
  // Asks nobody yet. Errors: InvalidArgument, of the options.
  static absl::StatusOr<std::unique_ptr<S3Store>> Create(const S3Options& options);
  ~S3Store() override;

  absl::Status Submit(Batch batch, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const override { return in_flight_.load(); }

 private:
  struct Op;
  struct Part;
  // Requests that share so many connections.
  struct Lane {
    const uint32_t connections;
    std::multimap<absl::Time, std::shared_ptr<Part>> waiting;  // by when they may begin
    std::map<const void*, std::shared_ptr<Part>> active;       // by handle
  };
  struct Running {
    std::shared_ptr<RunningBatch> batch;
    std::vector<std::shared_ptr<Op>> ops;
  };

  S3Store(const S3Options& options, S3Place place);

  // Of the thread.
  void Run();
  bool TakeSubmitted() ABSL_LOCKS_EXCLUDED(mutex_);  // false: stop
  void EndLate(absl::Time now);
  void Begin(Lane* lane, absl::Time now);
  void TakeEnds(absl::Time now);
  void Plan(const std::shared_ptr<Op>& op);  // its first requests
  void Ask(const std::shared_ptr<Op>& op, S3Request request, S3HttpRequest::Body body, S3HttpRequest::Into into,
           uint32_t number);
  void PartEnded(Part* part, absl::Status status);
  void GetEnded(const std::shared_ptr<Op>& op);
  void PutEnded(const std::shared_ptr<Op>& op, const Part& last);
  void End(const std::shared_ptr<Op>& op, Outcome outcome);
  void Drop(std::shared_ptr<Op> op);  // its requests, which may be all that has it
  // Has the parts of an upload that came to nothing removed: they cost room until then. Once, and not for long.
  void Abort(const std::shared_ptr<Op>& op);
  void Announce();

  const S3Options options_;
  const S3Place place_;
  InFlight in_flight_;
  void* const multi_;  // CURLM
  Mutex mutex_;
  std::vector<std::shared_ptr<RunningBatch>> submitted_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::multimap<absl::Time, Running> running_;  // by deadline
  Lane bytes_, questions_;
  std::vector<std::shared_ptr<RunningBatch>> finished_;
  std::thread thread_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_S3_STORE_H_
