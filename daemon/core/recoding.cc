// Encoding a prompt another way: in the remote store somebody else does it, and says how far it has come; on disk: disk_recoding.cc.

#include <string>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::On(const RecodeAsked& event, Effects*) {
  KVIST_CHECK(spaces_.Has(event.space) && event.keys.size() <= kKeysMax);
  KVIST_CHECK(event.tier == Tier::kRemote ? options_.remote.has_value() : options_.disk.has_value());
  Job job = JobOf(event, event.kind);
  job.total = event.keys.size() * spaces_[event.space].spec.groups.size();
  chunks_.Charge(event.keys.size() / 32);
  PromptJob& of = prompt_jobs_[event.job];
  of.keys.assign(event.keys.begin(), event.keys.end());
  of.recodes = event.tier;
  of.method = event.method;
  StartJob(std::move(job));
}

// Others have their turn meanwhile, for it may take hours; but not another one that encodes: what the later one does is to last.
Core::Turn Core::GoOnRecoding(Job* job, PromptJob* of, Effects* out) {
  if (of->recoded) return Turn::kDone;
  if (!recoding_.has_value()) {
    recoding_ = job->id;
    of->recoding = true;
    job->began = now_;
    out->push_back(RecodeStarted{job->id, *job->space, of->keys, of->method});
  }
  return Turn::kAside;
}

void Core::NextRecoding() {
  recoding_.reset();
  jobs_.ForEachRunning([](Job* job) { job->aside = job->aside && !Encodes(*job); });
}

void Core::On(const Recoded& event, Effects*) {
  const auto of = prompt_jobs_.find(event.job);
  if (of == prompt_jobs_.end()) return;  // it was cancelled
  Job* job = jobs_.Running(event.job);
  job->done = event.ended ? job->total : event.done;
  job->chunks = event.chunks;
  job->already = event.already;
  job->left =
      event.left + (event.ended && !event.status.ok() ? job->total - event.done : 0);  // what it didn't come to stays
  job->bytes = event.bytes;
  job->bytes_after = event.bytes_after;
  job->loss = event.loss;
  job->trouble = std::string(event.status.message());
  of->second.recoded = event.ended;
  if (event.ended) job->aside = false;
}

}  // namespace kvist::core
