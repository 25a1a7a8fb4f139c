// What the core does a slice at a time: clears and other jobs, and the end of what is over.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"

namespace kvist::core {

// ---- Jobs -------------------------------------------------------------------------------------------------------------------

void Core::StartJob(Job job) {
  if (job.space.has_value() && spaces_.Has(*job.space)) job.digest = spaces_[*job.space].spec.digest;
  jobs_.Start(std::move(job));
}

void Core::On(const ClearAsked& event, Effects* out) {
  if (event.space.has_value() && !spaces_.Has(*event.space)) {
    StartJob(JobOf(event, JobKind::kClear));
    jobs_.End(event.job, JobState::kDone);  // listed all the same: whoever asked may look for it
    out->push_back(JobEnded{event.job, JobState::kDone, 0});
    return;
  }
  all_cleared_ = all_cleared_ || !event.space.has_value();
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    if (event.space.has_value() && event.space->value != s) continue;
    Space& space = spaces_[SpaceId{s}];
    chunks_.Charge(1);
    spaces_.NewEpoch(SpaceId{s});
    space.cleared = true;
    if (Pins::OfSpace pins = pins_.TakeAll(SpaceId{s}, space.tenant); !pins.empty())
      cleared_pins_.push_back(std::move(pins));
  }
  placement_.HiddenAtOnce();
  // Places that are made later hold nothing of the epochs before.
  Job job = JobOf(event, JobKind::kClear);
  job.total = chunks_.places();
  job.unkept = options_.tiers_below();
  StartJob(std::move(job));
  if (options_.below()) out->push_back(SpaceCleared{event.job, event.space});
}

void Core::On(const ClearKept& event, Effects*) {
  jobs_.Keep(event.job, TierBit(event.in));
  if (Job* const job = jobs_.Running(event.job); job != nullptr && !event.status.ok()) {
    job->lost |= TierBit(event.in);
    job->trouble = absl::StrCat("it is gone from this kvistd, but not durably: ", event.status.message());
  }
  if (const auto prompt = prompt_jobs_.find(event.job); prompt != prompt_jobs_.end()) --prompt->second.hiding;
}

bool Core::JobWork() const {
  const Job* job = jobs_.current();
  if (job == nullptr) return false;
  return InSteps(*job) ? !job_waits_ : job->done < job->total || job->kept();
}

void Core::Clear(Job* job, uint64_t until) {
  for (; chunks_.work() < until && job->done < job->total; ++job->done) {
    const auto i = static_cast<ChunkIndex>(job->done);
    const Chunk& chunk = chunks_[i];
    chunks_.Charge(1);
    if (chunk.state == ChunkState::kFree || chunk.detached || chunk.epoch == spaces_[chunk.space].epoch) continue;
    if (job->space.has_value() && chunk.space != *job->space) continue;
    if (chunk.whole()) ++job->chunks;
    Detach(i);
  }
}

void Core::On(const JobCancelAsked& event, Effects* out) {
  if (Job* const running = jobs_.Running(event.job); running != nullptr) running->lost = 0;
  const Job* job = jobs_.End(event.job, JobState::kCancelled);
  if (job == nullptr) return;
  const auto prompt = prompt_jobs_.find(event.job);
  if (prompt != prompt_jobs_.end() && prompt->second.recoding) out->push_back(RecodeStopped{event.job});
  ForgetPromptJob(event.job);
  out->push_back(JobEnded{job->id, job->state, job->chunks});
}

void Core::Detach(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  placement_.PolicyOf(i).Withdrawn(i);
  placement_.Detach(i);
  if (chunk.state != ChunkState::kFilling) return placement_.Collect(i);
  Doom(i);
}

// ---- The clock --------------------------------------------------------------------------------------------------------------

void Core::On(const Tick& event, Effects* out) {
  const bool awaited = AwaitsRemote(), soon = placement_.SlabComesSoon();
  now_ = std::max(now_, event.now);
  const uint64_t until = chunks_.work() + options_.slice_work;
  placement_.SpendUntil(until, now_);
  if ((awaited && !AwaitsRemote()) || (soon && !placement_.SlabComesSoon())) job_waits_ = false;
  EndWhatIsOver(until, out);
  if (placement_.MakesRoom()) placement_.MakeRoom();
  ForgetAgain(until, out);
  Reap(until);
  BeginWaiting(out);
  GoOnFlushing(until, out);
  while (chunks_.work() < until && (JobWork() || !placement_.rest().empty())) {
    if (!placement_.rest().empty()) {
      placement_.CollectRest(until);
      continue;
    }
    Job* job = jobs_.current();
    if (InSteps(*job)) {
      GoOnWithPrompt(job, until, out);
      continue;
    }
    Clear(job, until);
    if (job->done < job->total || !job->kept() || !placement_.rest().empty()) continue;
    const Job* ended = jobs_.End(job->id, job->lost == 0 ? JobState::kDone : JobState::kCancelled);
    out->push_back(JobEnded{ended->id, ended->state, ended->chunks});
  }
}

// One at a time, whatever it keeps: a lease or an allocation is charged for all its chunks, and goes whole, for its budget is free
// when they are. So does a load.
void Core::EndWhatIsOver(uint64_t until, Effects* out) {
  const auto more = [&] { return chunks_.work() < until; };
  while (more()) {
    LeaseId over = leases_.OfClosed();
    if (!over) over = leases_.Expired(now_);
    if (!over) break;
    chunks_.Charge(1);
    EndLease(over);
  }
  if (placement_.in_doubt() > 0) {
    if (!doubt_until_.has_value()) doubt_until_ = now_ + options_.doubt;
    while (more() && placement_.in_doubt() > 0 && now_ >= *doubt_until_) placement_.EndDoubt();
  }
  while (more() && pins_.Due(now_)) {
    chunks_.Charge(1);
    if (const auto over = pins_.NextDue())
      KeepNoLonger(pins_.Take(over->space, spaces_[over->space].tenant, over->name).kept);
  }
  for (; more() && !given_up_.empty(); given_up_.pop_front()) {
    chunks_.Charge(1);
    if (ops_.Find(given_up_.front()) != nullptr) EndWaiting(given_up_.front(), SessionWasClosed(), out);
  }
  for (; more() && !let_go_.empty(); let_go_.pop_back()) KeepNoLonger({&let_go_.back(), 1});
  while (more() && allocations_.OfClosed()) {
    chunks_.Charge(1);
    EndAllocation(allocations_.OfClosed());
  }
  while (more() && !cleared_pins_.empty()) {
    Pins::OfSpace& pins = cleared_pins_.front();
    chunks_.Charge(1);
    const Pins::OfSpace::node_type ended = pins.extract(pins.begin());
    pins_.Forget(ended.mapped());
    KeepNoLonger(ended.mapped().kept);
    if (pins.empty()) cleared_pins_.pop_front();
  }
  for (; more() && tier_clears_ == 0 && !came_.empty(); came_.erase(came_.begin())) chunks_.Charge(1);
  ForgetCleared(until);
}

// Half stores that were left to be ended, those that are late, and those of dead ranks.
void Core::Reap(uint64_t until) {
  while (chunks_.work() < until && !quiet_.empty()) {
    const auto [chunk, serial] = quiet_.front();
    quiet_.pop_front();
    // It may have ended since, and another half store of the same chunk have begun.
    if (const Fill* fill = fills_.Find(chunk); fill != nullptr && fill->serial == serial) Abandon(chunk);
    chunks_.Charge(1);
  }
  while (chunks_.work() < until && fills_.Due(now_)) {
    chunks_.Charge(1);
    Doom(fills_.TakeDue());
  }
  while (chunks_.work() < until && !reap_.empty()) {
    const DeadWriter& writer = reap_.front();
    chunks_.Charge(1);
    if (const ChunkIndex chunk = fills_.TakeOf(writer.instance, writer.serial); chunk != kNoChunk) {
      Doom(chunk);
    } else {
      reap_.pop_front();
    }
  }
}

}  // namespace kvist::core
