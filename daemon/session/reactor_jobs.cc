// Jobs of operators: asked for here, listed for whoever keeps them, and asked for again after a restart.

#include <algorithm>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/session/reactor.h"
#include "daemon/session/registration.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

template <class Asked>
constexpr bool kOnPrompt = !std::is_same_v<Asked, core::ClearAsked>;

bool OfAllTiers(const core::Job& job) { return job.kind == core::JobKind::kClear && !job.tier.has_value(); }

absl::Status CheckTier(core::Tier tier, const core::CoreOptions& options) {
  if (tier == core::Tier::kSsd && !options.disk.has_value())
    return absl::FailedPreconditionError("kvistd was started again without the SSD tier");
  if (tier == core::Tier::kRemote && !options.remote.has_value())
    return absl::FailedPreconditionError("kvistd was started again without the remote tier");
  return absl::OkStatus();
}

// Those that a job which goes on needs. Of a clear: each in which what it clears may lie, or it would be there again with the tier.
uint8_t TiersOf(const core::ClearAsked&, uint8_t below) { return below; }
uint8_t TiersOf(const core::PromptClearAsked&, uint8_t below) { return below; }
uint8_t TiersOf(const core::TierClearAsked& clear, uint8_t) { return core::TierBit(clear.tier); }
uint8_t TiersOf(const core::MoveAsked& move, uint8_t) {
  return static_cast<uint8_t>(core::TierBit(move.from) | core::TierBit(move.to));
}
uint8_t TiersOf(const core::RecodeAsked&, uint8_t) { return core::TierBit(core::Tier::kRemote); }

absl::Status CheckTiers(const AskedJob& asked, const core::CoreOptions& options) {
  const uint8_t needed = std::visit([&](const auto& event) { return TiersOf(event, asked.tiers); }, asked.event);
  for (const core::Tier tier : {core::Tier::kSsd, core::Tier::kRemote}) {
    if ((needed & core::TierBit(tier)) != 0) KVIST_RETURN_IF_ERROR(CheckTier(tier, options));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- Asked for --------------------------------------------------------------------------------------------------------------

template <class Asked>
absl::StatusOr<core::JobId> Reactor::StartJob(Asked asked, std::string request) {
  if (core_.jobs().full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(core::Jobs::kRunningMax, " jobs are running: wait for one to end, or cancel one"));
  }
  const core::JobId job{next_job_++};
  AskedJob kept;
  kept.tiers = core_.options().tiers_below();
  const std::optional<SpaceId> space = asked.space;
  if (space.has_value()) kept.space = core_.spec(*space).description;
  if constexpr (kOnPrompt<Asked>) {
    kept.keys.assign(asked.keys.begin(), asked.keys.end());
    Asked without = asked;
    without.keys = {};
    kept.event = without;
  } else {
    kept.event = asked;
  }
  asked_jobs_[job] = std::make_shared<const AskedJob>(std::move(kept));
  asked.job = job;
  asked.request = std::move(request);
  core_.Handle(asked, &effects_);
  CarryOut();
  TellOfJobs();
  return job;
}

absl::StatusOr<core::JobId> Reactor::Clear(std::optional<SpaceId> space, std::string request) {
  if (const core::Job* known = core_.jobs().OfRequest(request)) return known->id;
  return StartJob(core::ClearAsked{.job = {}, .space = space}, std::move(request));
}

absl::StatusOr<core::JobId> Reactor::ClearPrompt(core::PromptClearAsked clear, std::string request) {
  if (const core::Job* known = core_.jobs().OfRequest(request, core_.spec(clear.space).digest)) return known->id;
  return StartJob(clear, std::move(request));
}

absl::StatusOr<core::JobId> Reactor::ClearTier(core::TierClearAsked clear, std::string request) {
  const core::Jobs& jobs = core_.jobs();
  const core::Job* known =
      clear.keys.empty() ? jobs.OfRequest(request) : jobs.OfRequest(request, core_.spec(*clear.space).digest);
  if (known != nullptr) return known->id;
  return StartJob(clear, std::move(request));
}

absl::StatusOr<core::JobId> Reactor::Move(core::MoveAsked move, std::string request) {
  if (const core::Job* known = core_.jobs().OfRequest(request, core_.spec(move.space).digest)) return known->id;
  return StartJob(move, std::move(request));
}

absl::StatusOr<core::JobId> Reactor::Recode(core::RecodeAsked recode, std::string request) {
  if (const core::Job* known = core_.jobs().OfRequest(request, core_.spec(recode.space).digest)) return known->id;
  return StartJob(recode, std::move(request));
}

void Reactor::CancelJob(core::JobId job) {
  core_.Handle(core::JobCancelAsked{job}, &effects_);
  CarryOut();
}

// ---- Listed -----------------------------------------------------------------------------------------------------------------

void Reactor::Carry(core::JobEnded&) {
  std::erase_if(asked_jobs_, [this](const auto& asked) {
    const core::Job* const job = core_.jobs().Find(asked.first);
    return job == nullptr || (job->state != core::JobState::kRunning && job->lost == 0);
  });
  TellOfJobs();
}

void Reactor::Kept(const core::ClearKept& kept) {
  const core::Job* job = core_.jobs().Find(kept.job);
  if (job != nullptr && OfAllTiers(*job)) TellOfJobs();  // it needn't be asked for again
}

void Reactor::TellOfJobs() {
  if (!jobs_listed_) return;
  std::vector<ListedJob> listed, to_do;
  core_.jobs().ForEach([&](const core::Job& job) {
    const bool runs = job.state == core::JobState::kRunning;  // one that ended with another is there still
    if (!runs && job.lost == 0) return listed.push_back({job, nullptr});
    ListedJob again{job, asked_jobs_.at(job.id)};
    again.job.state = core::JobState::kRunning;
    again.job.unkept |= job.lost;
    if (job.lost != 0) again.job.trouble.clear();
    to_do.push_back(std::move(again));
  });
  // The next kvistd takes no more.
  if (to_do.size() > core::Jobs::kRunningMax) to_do.erase(to_do.begin(), to_do.end() - core::Jobs::kRunningMax);
  std::move(to_do.begin(), to_do.end(), std::back_inserter(listed));
  jobs_listed_(std::move(listed));
}

// ---- After a restart --------------------------------------------------------------------------------------------------------

void Reactor::GoOnWith(std::vector<ListedJob> jobs, core::JobId last) {
  next_job_ = last.value + 1;
  Run([this, jobs = std::move(jobs)] {
    for (const ListedJob& job : jobs) Resume(job);
    TellOfJobs();
  });
}

void Reactor::Resume(ListedJob listed) {
  core::Job& job = listed.job;
  const bool ran = job.state == core::JobState::kRunning;
  job.resumed = job.resumed || ran;
  // A clear that had become durable has nothing left to do; and what was stored since, and is durable, too, must not go with it.
  if (ran && OfAllTiers(job) && job.kept()) {
    job.state = core::JobState::kDone;
    job.done = job.total;
  }
  absl::StatusOr<std::optional<SpaceId>> space = std::nullopt;
  if (job.state == core::JobState::kRunning) {
    space = SpaceToResume(listed);
    if (!space.ok()) {
      job.state = core::JobState::kCancelled;
      job.trouble = absl::StrCat("it couldn't go on after a restart: ", absl::string_view(space.status().message()));
    }
  }
  if (job.state != core::JobState::kRunning) return core_.Remember(std::move(job));
  asked_jobs_[job.id] = listed.asked;
  std::visit(
      [&](auto asked) {
        using Asked = decltype(asked);
        asked.job = job.id;
        asked.request = job.request;
        asked.resumed = true;
        if constexpr (kOnPrompt<Asked>) asked.keys = listed.asked->keys;
        if constexpr (std::is_same_v<decltype(asked.space), SpaceId>) {
          asked.space = **space;
        } else {
          asked.space = *space;
        }
        core_.Handle(asked, &effects_);
      },
      listed.asked->event);
  CarryOut();
}

absl::StatusOr<std::optional<SpaceId>> Reactor::SpaceToResume(const ListedJob& job) {
  const AskedJob& asked = *job.asked;
  KVIST_RETURN_IF_ERROR(CheckTiers(asked, core_.options()));
  if (!job.job.digest.has_value()) return std::nullopt;
  const absl::StatusOr<core::SpaceSpec> spec = SpaceOf(asked.space);
  if (!spec.ok() || spec->digest != *job.job.digest)
    return absl::FailedPreconditionError("this kvistd doesn't know such a space");
  core_.Handle(core::SpaceFound{*spec}, &effects_);
  CarryOut();
  const std::optional<SpaceId> space = core_.FindSpace(spec->digest);
  if (!space.has_value()) return absl::FailedPreconditionError("its space's chunks don't fit into this kvistd's pool");
  if (std::holds_alternative<core::PromptClearAsked>(asked.event) && asked.keys.size() > core_.ClearKeysMax(*space))
    return absl::FailedPreconditionError("the prompt is longer than what this kvistd clears at once");
  return space;
}

}  // namespace kvist::session
