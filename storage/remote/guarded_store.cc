#include "storage/remote/guarded_store.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::remote {
namespace {

Bytes BytesToMove(const Batch& batch) { return {LoadOf(batch).bytes}; }

}  // namespace

absl::Status GuardOptions::Validate() const {
  if (limits.operations == 0 || limits.bytes.value == 0) return absl::InvalidArgumentError("limits: at least 1 of each");
  if (breaker.failures == 0) return absl::InvalidArgumentError("breaker.failures: at least 1");
  if (breaker.pause_min <= absl::ZeroDuration() || breaker.pause_max < breaker.pause_min)
    return absl::InvalidArgumentError("breaker.pause_min: above 0 and at most breaker.pause_max");
  if (rate.burst.value == 0) return absl::InvalidArgumentError("rate.burst: at least 1 byte");
  if (time_max <= absl::ZeroDuration()) return absl::InvalidArgumentError("time_max: above 0");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GuardedStore>> GuardedStore::Create(std::unique_ptr<RemoteStore> store,
                                                                   const GuardOptions& options) {
  KVIST_RETURN_IF_ERROR(options.Validate());
  return absl::WrapUnique(new GuardedStore(std::move(store), options));
}

GuardedStore::GuardedStore(std::unique_ptr<RemoteStore> store, const GuardOptions& options)
    : options_(options),
      in_flight_(options.limits),
      breaker_(options.breaker),
      rate_(options.rate, MonotonicNow()),
      store_(std::move(store)) {
  rate_thread_ = std::thread([this] { WaitForRate(); });
}

GuardedStore::~GuardedStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  rate_thread_.join();  // it has ended what waited
}

absl::Status GuardedStore::Submit(Batch batch, Done done) {
  KVIST_RETURN_IF_ERROR(ValidateNames(batch));
  const absl::Time now = MonotonicNow();
  if (batch.deadline <= now) return absl::DeadlineExceededError("the deadline has passed before the remote store was asked");
  batch.deadline = std::min(batch.deadline, now + options_.time_max);
  const Load load = LoadOf(batch);
  const absl::Status room = in_flight_.Take(load);
  absl::Status refusal;
  Breaker::Ticket ticket;
  {
    absl::MutexLock lock(&mutex_);
    if (!room.ok()) {
      ++figures_.refused_full;
      return room;
    }
    if (stopping_) {
      refusal = BeingClosed();
    } else if (const auto allowed = breaker_.Allow(now); !allowed.has_value()) {
      ++figures_.refused_open;
      refusal = absl::UnavailableError(
          absl::StrCat("the remote store hasn't answered lately; it is ", NameOf(breaker_.state()), " and not asked now"));
    } else {
      ticket = *allowed;
      ++figures_.batches;
      const bool waits = !IsQuestion(batch) && load.bytes > 0 && (!waiting_.empty() || !rate_.Take({load.bytes}, now));
      if (waits) {
        waiting_.push_back({std::move(batch), std::move(done), ticket});
        changed_.Signal();
        return absl::OkStatus();
      }
    }
  }
  if (refusal.ok()) refusal = Pass(std::move(batch), std::make_shared<Done>(std::move(done)), ticket);
  if (!refusal.ok()) in_flight_.GiveBack(load);
  return refusal;
}

absl::Status GuardedStore::Pass(Batch batch, std::shared_ptr<Done> done, Breaker::Ticket ticket) {
  const Load load = LoadOf(batch);
  const bool patient = batch.deadline - MonotonicNow() >= options_.patience;
  const absl::Status status =
      store_->Submit(std::move(batch), [this, done, ticket, load, patient](std::vector<Outcome> outcomes) {
        Judge(outcomes, patient, ticket);
        in_flight_.GiveBack(load);
        (*done)(std::move(outcomes));
      });
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    breaker_.Unused(ticket);
  }
  return status;
}

void GuardedStore::Judge(const std::vector<Outcome>& outcomes, bool patient, Breaker::Ticket ticket) {
  bool unreachable = false;
  bool failed = false;
  bool answered = false;
  absl::MutexLock lock(&mutex_);
  for (const Outcome& outcome : outcomes) {
    ++figures_.outcomes[static_cast<size_t>(outcome.status.code())];
    switch (outcome.status.code()) {
      case absl::StatusCode::kUnavailable: unreachable = true; break;
      case absl::StatusCode::kPermissionDenied: failed = true; break;
      case absl::StatusCode::kDeadlineExceeded: failed = failed || patient; break;
      case absl::StatusCode::kCancelled: break;
      default: answered = true;
    }
  }
  if (failed || (unreachable && !answered)) {
    breaker_.Failed(ticket, MonotonicNow());
    if (breaker_.state() == Breaker::State::kOpen) changed_.Signal();
  } else if (answered) {  // also when a part couldn't be reached: one server of several may be gone
    breaker_.Succeeded(ticket);
  } else {
    breaker_.Unused(ticket);
  }
}

void GuardedStore::Refuse(Waiting waiting, const absl::Status& status) {
  const Load load = LoadOf(waiting.batch);
  std::vector<Outcome> outcomes(waiting.batch.operations.size());
  for (Outcome& outcome : outcomes) outcome.status = status;
  {
    absl::MutexLock lock(&mutex_);
    breaker_.Unused(waiting.ticket);
    figures_.outcomes[static_cast<size_t>(status.code())] += outcomes.size();
  }
  in_flight_.GiveBack(load);
  waiting.done(std::move(outcomes));
}

void GuardedStore::WaitForRate() {
  const absl::Status late =
      absl::DeadlineExceededError("the deadline passed while it waited for the remote store's rate limit");
  const absl::Status cancelled = absl::CancelledError("the remote store is being closed");
  const absl::Status opened =
      absl::UnavailableError("the remote store stopped answering while a batch waited for its rate limit");
  while (true) {
    std::vector<Waiting> refused;
    absl::Status refusal;
    std::optional<Waiting> next;
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time now = MonotonicNow();
      stopping = stopping_;
      const bool open = breaker_.state() == Breaker::State::kOpen;
      refusal = stopping ? cancelled : open ? opened : late;
      absl::Time wake = absl::InfiniteFuture();
      for (auto at = waiting_.begin(); at != waiting_.end();) {
        if (stopping || open || at->batch.deadline <= now) {
          refused.push_back(std::move(*at));
          at = waiting_.erase(at);
        } else {
          wake = std::min(wake, at->batch.deadline);
          ++at;
        }
      }
      if (!waiting_.empty()) {
        const Bytes bytes = BytesToMove(waiting_.front().batch);
        if (rate_.Take(bytes, now)) {
          next = std::move(waiting_.front());
          waiting_.pop_front();
        } else {
          wake = std::min(wake, rate_.When(bytes, now));
        }
      }
      if (!stopping && refused.empty() && !next.has_value()) {
        changed_.WaitWithTimeout(&mutex_, wake - now);
        continue;
      }
    }
    for (Waiting& waiting : refused) Refuse(std::move(waiting), refusal);
    if (stopping) return;
    if (!next.has_value()) continue;
    const Load load = LoadOf(next->batch);
    const size_t operations = next->batch.operations.size();
    const auto done = std::make_shared<Done>(std::move(next->done));
    const absl::Status status = Pass(std::move(next->batch), done, next->ticket);
    if (status.ok()) continue;
    std::vector<Outcome> outcomes(operations);
    for (Outcome& outcome : outcomes) outcome.status = status;
    in_flight_.GiveBack(load);
    (*done)(std::move(outcomes));
  }
}

GuardedStore::Figures GuardedStore::figures() const {
  absl::MutexLock lock(&mutex_);
  Figures figures = figures_;
  figures.breaker = breaker_.state();
  figures.opened = breaker_.opened();
  return figures;
}

}  // namespace kvist::remote
