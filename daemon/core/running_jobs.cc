// Jobs have their turns, one after the other: clears of whole spaces, which are hidden at once and freed in slices, and jobs in steps
// (prompt_jobs.h).

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"

namespace kvist::core {

// ---- Clears of spaces -------------------------------------------------------------------------------------------------------

void Core::On(const ClearAsked& event, Effects* out) {
  if (event.space.has_value() && !spaces_.Has(*event.space)) {
    StartJob(JobOf(event, JobKind::kClear));
    jobs_.End(event.job, JobState::kDone, now_);  // listed all the same: whoever asked may look for it
    out->push_back(JobEnded{event.job, JobState::kDone, 0});
    return;
  }
  if (!event.space.has_value()) {
    untold_clears_.ClearedAll();
    if (!all_told_) untold_pins_.ClearedAll();
  }
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    if (event.space.has_value() && event.space->value != s) continue;
    Space& space = spaces_[SpaceId{s}];
    chunks_.Charge(1);
    spaces_.NewEpoch(SpaceId{s});
    space.cleared = true;
    if (!all_told_) untold_pins_.Cleared(SpaceId{s});
    if (Pins::OfSpace pins = pins_.TakeAll(SpaceId{s}, space.tenant); !pins.empty())
      cleared_pins_.emplace_back(SpaceId{s}, std::move(pins));
  }
  placement_.HiddenAtOnce();
  // Places that are made later hold nothing of the epochs before.
  Job job = JobOf(event, JobKind::kClear);
  job.total = chunks_.places();
  job.unkept = options_.tiers_below();
  StartJob(std::move(job));
  if (options_.below()) out->push_back(SpaceCleared{event.job, event.space});
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

void Core::On(const ClearKept& event, Effects*) {
  jobs_.Keep(event.job, TierBit(event.in));
  if (Job* const job = jobs_.Running(event.job); job != nullptr && !event.status.ok()) {
    job->lost |= TierBit(event.in);
    job->trouble = absl::StrCat("it is gone from this kvistd, but not durably: ", event.status.message());
  }
  if (const auto prompt = prompt_jobs_.find(event.job); prompt != prompt_jobs_.end()) --prompt->second.hiding;
}

// ---- Their turns ------------------------------------------------------------------------------------------------------------

void Core::StartJob(Job job) {
  if (job.space.has_value() && spaces_.Has(*job.space)) job.digest = spaces_[*job.space].spec.digest;
  jobs_.Start(std::move(job));
}

bool Core::JobWork() const {
  const Job* job = jobs_.current();
  if (job == nullptr) return false;
  return InSteps(*job) ? !job_waits_ : job->done < job->total || job->kept();
}

bool Core::MayBegin(const Job& job, PromptJob* of) {
  const bool move = job.kind == JobKind::kMove || job.kind == JobKind::kPrefetch;
  const auto uses = [&](Tier tier) {
    return (move && (of->move.from == tier || of->move.to == tier)) || (Encodes(job) && of->recodes == tier);
  };
  if (of->begun) return true;
  if (uses(Tier::kSsd) && options_.disk.has_value() && !all_told_) return false;
  if (job.resumed && uses(Tier::kRemote) && !reachable_) {
    if (!remote_awaited_until_.has_value()) remote_awaited_until_ = now_ + options_.remote->awaited;
    if (AwaitsRemote()) return false;
  }
  return of->begun = true;
}

void Core::GoOnWithJob(uint64_t until, Effects* out) {
  Job* job = jobs_.current();
  if (InSteps(*job)) return GoOnWithPrompt(job, until, out);
  if (!job->began.has_value()) job->began = now_;
  Clear(job, until);
  if (job->done < job->total || !job->kept() || !placement_.rest().empty()) return;
  const Job* ended = jobs_.End(job->id, job->lost == 0 ? JobState::kDone : JobState::kCancelled, now_);
  out->push_back(JobEnded{ended->id, ended->state, ended->chunks});
}

void Core::GoOnWithPrompt(Job* job, uint64_t until, Effects* out) {
  PromptJob& of = prompt_jobs_.at(job->id);
  job_waits_ = !MayBegin(*job, &of);
  if (job_waits_) return;
  const bool on_disk = Encodes(*job) && of.recodes == Tier::kSsd;
  if (!job->began.has_value() && (on_disk || !Encodes(*job))) job->began = now_;
  const Turn turn = on_disk                              ? GoOnRecodingOnDisk(job, &of, until, out)
                    : Encodes(*job)                      ? GoOnRecoding(job, &of, out)
                    : job->tier.has_value()              ? GoOnClearingTier(job, &of, until, out)
                    : job->kind == JobKind::kClearPrompt ? GoOnClearing(job, &of, until, out)
                    : of.move.from == Tier::kRemote      ? GoOnReadingRemote(job, &of, until, out)
                    : of.move.to == Tier::kSsd           ? GoOnWriting(job, &of, until, out)
                    : of.move.to == Tier::kDram          ? GoOnReading(job, &of, until, out)
                    : of.move.from == Tier::kSsd         ? GoOnSending(job, &of, until, out)
                                                         : GoOnWritingRemote(job, &of, until, out);
  job_waits_ = turn == Turn::kWaits;
  job->aside = turn == Turn::kAside;
  if (turn != Turn::kDone) return;
  const Job* ended = jobs_.End(job->id, job->lost == 0 ? JobState::kDone : JobState::kCancelled, now_);
  ForgetPromptJob(ended->id);
  out->push_back(JobEnded{ended->id, ended->state, ended->chunks});
}

// ---- Their ends -------------------------------------------------------------------------------------------------------------

void Core::On(const JobCancelAsked& event, Effects* out) {
  if (Job* const running = jobs_.Running(event.job); running != nullptr) running->lost = 0;
  const Job* job = jobs_.End(event.job, JobState::kCancelled, now_);
  if (job == nullptr) return;
  const auto prompt = prompt_jobs_.find(event.job);
  if (prompt != prompt_jobs_.end() && prompt->second.recoding) out->push_back(RecodeStopped{event.job});
  ForgetPromptJob(event.job);
  out->push_back(JobEnded{job->id, job->state, job->chunks});
}

void Core::ForgetPromptJob(JobId id) {
  job_waits_ = false;
  const auto job = prompt_jobs_.find(id);
  if (job == prompt_jobs_.end()) return;
  for (const PromptJob::Kept& kept : job->second.kept) let_go_.push_back(kept.chunk);
  const Job* ended = jobs_.Find(id);
  if (!job->second.again.empty()) unforgotten_.emplace_back(*ended->space, std::move(job->second.again));
  if (ended->kind == JobKind::kClearPrompt && !ended->tier.has_value() && options_.remote.has_value()) {
    chunks_.Charge(job->second.keys.size());
    for (const ChunkKey& key : job->second.keys) remote_names_.ClearEnded({*ended->space, key});
  }
  if (recoding_ == id) NextRecoding();
  if (job->second.of_tier) arrivals_.WatchNoLonger();
  prompt_jobs_.erase(job);
}

}  // namespace kvist::core
