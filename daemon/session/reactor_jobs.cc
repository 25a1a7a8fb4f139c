// Jobs of operators: asked for here, listed for whoever keeps them, and asked for again after a restart.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/session/reactor.h"
#include "daemon/session/space_description.h"
#include "storage/base/status.h"
#include "storage/base/xxh3.h"

namespace kvist::session {
namespace {

template <class Asked>
constexpr bool kOnPrompt = !std::is_same_v<Asked, core::ClearAsked>;

template <class Asked>
std::span<const ChunkKey> KeysOf(const Asked& asked) {
  if constexpr (kOnPrompt<Asked>) return asked.keys;
  return {};
}
template <class Asked>
Asked WithoutKeys(Asked asked) {
  if constexpr (kOnPrompt<Asked>) asked.keys = {};
  return asked;
}

// What is asked for beside space and keys.
std::string WordsOf(const core::ClearAsked&) { return "clear"; }
std::string WordsOf(const core::PromptClearAsked&) { return "clear"; }
std::string WordsOf(const core::TierClearAsked& clear) { return absl::StrCat("clear ", static_cast<int>(clear.tier)); }
std::string WordsOf(const core::MoveAsked& move) {
  return absl::StrCat("move ", static_cast<int>(move.kind), " ", static_cast<int>(move.from), " ", static_cast<int>(move.to),
                      move.keep_source ? " keep" : "");
}
std::string WordsOf(const core::RecodeAsked& recode) {
  return absl::StrCat("recode ", static_cast<int>(recode.kind), " ", static_cast<int>(recode.method),
                      recode.tier == core::Tier::kRemote ? "" : absl::StrCat(" ", static_cast<int>(recode.tier)));
}

// core::Job::what: the same for later daemons, and never 0.
template <class Asked>
uint64_t WhatIs(const Asked& asked, const std::optional<SpaceDigest>& space) {
  std::string what = absl::StrCat(WordsOf(asked), "\n");
  const auto append = [&what](const auto& bytes) { what.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); };
  if (space.has_value()) append(space->bytes);
  for (const ChunkKey& key : KeysOf(asked)) append(key.bytes);
  return std::max<uint64_t>(XXH3_64bits(what.data(), what.size()), 1);
}

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
uint8_t TiersOf(const core::RecodeAsked& recode, uint8_t) { return core::TierBit(recode.tier); }

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
  const std::optional<SpaceId> space = asked.space;
  std::optional<SpaceDigest> digest;
  if (space.has_value()) digest = core_.spec(*space).digest;
  if (!request.empty()) asked.what = WhatIs(asked, digest);
  const core::Jobs& jobs = core_.jobs();
  if (const core::Job* known = KeysOf(asked).empty() ? jobs.OfRequest(request) : jobs.OfRequest(request, *digest);
      known != nullptr) {
    if (known->what == asked.what || known->what == 0) return known->id;
    return absl::AlreadyExistsError(
        absl::StrCat("request: job ", known->id.value,
                     " has been asked for under this name, and it is of something else: choose another"));
  }
  if (jobs.full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(core::Jobs::kRunningMax, " jobs are running: wait for one to end, or cancel one"));
  }
  const core::JobId job{next_job_++};
  AskedJob kept;
  kept.tiers = core_.options().tiers_below();
  if (space.has_value()) kept.space = core_.spec(*space).description;
  const std::span<const ChunkKey> keys = KeysOf(asked);
  kept.keys.assign(keys.begin(), keys.end());
  kept.event = WithoutKeys(asked);
  asked_jobs_[job] = std::make_shared<const AskedJob>(std::move(kept));
  asked.job = job;
  asked.request = std::move(request);
  core_.Handle(asked, &effects_);
  CarryOut();
  TellOfJobs();
  return job;
}

absl::StatusOr<core::JobId> Reactor::Clear(std::optional<SpaceId> space, std::string request) {
  return StartJob(core::ClearAsked{.job = {}, .space = space}, std::move(request));
}
absl::StatusOr<core::JobId> Reactor::ClearPrompt(core::PromptClearAsked clear, std::string request) {
  return StartJob(clear, std::move(request));
}
absl::StatusOr<core::JobId> Reactor::ClearTier(core::TierClearAsked clear, std::string request) {
  return StartJob(clear, std::move(request));
}
absl::StatusOr<core::JobId> Reactor::Move(core::MoveAsked move, std::string request) {
  return StartJob(move, std::move(request));
}
absl::StatusOr<core::JobId> Reactor::Recode(core::RecodeAsked recode, std::string request) {
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
        asked.what = job.what;
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
