#include "daemon/core/jobs.h"

#include <algorithm>
#include <utility>

#include "storage/base/check.h"

namespace kvist::core {

void Jobs::Start(Job job) {
  KVIST_CHECK(!full() && Find(job.id) == nullptr);
  running_.push_back(std::move(job));
}

Job* Jobs::current() {
  const auto job = std::find_if(running_.begin(), running_.end(), [](const Job& j) { return !j.aside; });
  return job == running_.end() ? nullptr : &*job;
}

Job* Jobs::Running(JobId id) {
  const auto job = std::find_if(running_.begin(), running_.end(), [id](const Job& j) { return j.id == id; });
  return job == running_.end() ? nullptr : &*job;
}

void Jobs::Keep(JobId id, uint8_t tiers) {
  if (Job* const job = Running(id); job != nullptr) job->unkept = static_cast<uint8_t>(job->unkept & ~tiers);
}

const Job* Jobs::End(JobId id, JobState how, absl::Time now) {
  KVIST_CHECK(how != JobState::kRunning);
  const auto job = std::find_if(running_.begin(), running_.end(), [id](const Job& j) { return j.id == id; });
  if (job == running_.end()) return nullptr;
  job->state = how;
  job->ended = now;
  Job ended = std::move(*job);
  running_.erase(job);
  Remember(std::move(ended));
  return &ended_.back();
}

void Jobs::Remember(Job ended) {
  KVIST_CHECK(ended.state != JobState::kRunning && Find(ended.id) == nullptr);
  ended_.push_back(std::move(ended));
  if (ended_.size() > kEndedKept) ended_.pop_front();
}

const Job* Jobs::Find(JobId id) const {
  const Job* found = nullptr;
  ForEach([&](const Job& job) {
    if (job.id == id) found = &job;
  });
  return found;
}

const Job* Jobs::OfRequest(absl::string_view request) const {
  const Job* found = nullptr;
  ForEach([&](const Job& job) {
    if (!request.empty() && job.request == request) found = &job;
  });
  return found;
}

const Job* Jobs::OfRequest(absl::string_view request, const SpaceDigest& space) const {
  const Job* found = nullptr;
  ForEach([&](const Job& job) {
    if (!request.empty() && job.request == request && job.digest == space) found = &job;
  });
  return found;
}

}  // namespace kvist::core
