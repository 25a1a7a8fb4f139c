#include "storage/remote/in_flight.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::remote {

absl::Status InFlight::Take(const Load& load) {
  MutexLock lock(&mutex_);
  if (load.operations > limits_.operations - load_.operations || load.bytes > limits_.bytes.value - load_.bytes)
    return absl::ResourceExhaustedError(absl::StrCat(
        "the remote store has ", load_.operations, " of ", limits_.operations, " operations and ", load_.bytes, " of ",
        limits_.bytes.value, " bytes in flight; ", load.operations, " with ", load.bytes, " more don't fit"));
  load_.operations += load.operations;
  load_.bytes += load.bytes;
  return absl::OkStatus();
}

void InFlight::GiveBack(const Load& load) {
  MutexLock lock(&mutex_);
  KVIST_CHECK(load.operations <= load_.operations && load.bytes <= load_.bytes);
  load_.operations -= load.operations;
  load_.bytes -= load.bytes;
}

Load InFlight::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

Load LoadOf(const Batch& batch) {
  Load load{batch.operations.size(), 0};
  for (const Operation& operation : batch.operations) load.bytes += operation.bytes().value;
  return load;
}

absl::Status BeingClosed() { return absl::UnavailableError("the remote store is being closed"); }

RunningBatch::RunningBatch(Batch batch, Done done, InFlight* in_flight)
    : batch_(std::move(batch)),
      done_(std::move(done)),
      in_flight_(in_flight),
      load_(LoadOf(batch_)),
      outcomes_(batch_.operations.size()),
      ended_(batch_.operations.size()),
      left_(batch_.operations.size()) {}

RunningBatch::~RunningBatch() { KVIST_CHECK(left_ == 0 && done_ == nullptr); }

bool RunningBatch::End(size_t i, Outcome outcome) {
  KVIST_CHECK(!ended_[i]);
  ended_[i] = true;
  outcomes_[i] = std::move(outcome);
  return --left_ == 0;
}

void RunningBatch::Announce() {
  KVIST_CHECK(left_ == 0 && done_ != nullptr);
  in_flight_->GiveBack(load_);
  std::exchange(done_, nullptr)(std::move(outcomes_));
}

void RunningBatch::Refuse() {
  KVIST_CHECK(left_ == batch_.operations.size() && done_ != nullptr);
  left_ = 0;
  done_ = nullptr;
  in_flight_->GiveBack(load_);
}

}  // namespace kvist::remote
