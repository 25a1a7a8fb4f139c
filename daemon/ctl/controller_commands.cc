#include "daemon/ctl/controller_commands.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/ctl/job_progress.h"
#include "storage/base/clock.h"

namespace kvist::ctl {

namespace api = controller::v1;

namespace {

// Between two looks at a job: short at first, because most are over soon.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(200);

template <class Reply>
ExitCode Of(const Reply& reply) {
  const bool all =
      std::all_of(reply.nodes().begin(), reply.nodes().end(), [](const auto& node) { return node.code() == 0; });
  return all ? kOk : kRefused;
}

}  // namespace

template <class Ask>
ExitCode ControllerSession::WithController(Ask ask) {
  absl::StatusOr<ControllerClient> controller = ControllerClient::Connect(arguments_.target);
  return controller.ok() ? ask(*controller) : NotReached(controller.status());
}

template <class Request, class Ask>
ExitCode ControllerSession::WithPrompt(Ask ask) {
  absl::StatusOr<node::v1::Prompt> prompt = ReadPrompt();
  if (!prompt.ok()) return kUsage;
  Request request;
  *request.mutable_space() = arguments_.filter;
  *request.mutable_prompt() = *std::move(prompt);
  return ask(std::move(request));
}

template <class Request>
ExitCode ControllerSession::Question(const Request& request) {
  return WithController(
      [&](ControllerClient& controller) { return Print(controller.Ask(request, Timeout(kQuestionTime)), kQuestionTime); });
}

template <class Request>
ExitCode ControllerSession::Change(const Request& request, const std::string& what) {
  if (arguments_.dry_run) {
    api::LookupRequest lookup;
    *lookup.mutable_space() = request.space();
    *lookup.mutable_prompt() = request.prompt();
    lookup.set_ask_nodes(true);
    if (!arguments_.node.empty()) lookup.add_nodes(arguments_.node);
    const ExitCode code = Question(lookup);
    if (code == kOk && !json()) terminal_.out << "This would be " << what << ". Nothing was done.\n";
    return code;
  }
  return WithController([&](ControllerClient& controller) {
    absl::StatusOr<api::JobsReply> jobs = controller.Ask(request, Timeout(kQuestionTime));
    if (!jobs.ok()) return Fail(jobs.status(), kQuestionTime, "; what has begun goes on in the nodes");
    ExitCode all = Of(*jobs);
    for (api::Job& job : *jobs->mutable_jobs()) {
      const ExitCode code = Watch(controller, /*each=*/false, &job);
      if (code != kOk && code != kRefused) return code;
      if (code != kOk) all = code;
    }
    Print(jobs, kQuestionTime);
    return all;
  });
}

ExitCode ControllerSession::Watch(ControllerClient& controller, bool each, api::Job* job) {
  const std::string id = job->id();
  std::optional<JobProgress> progress;
  if (!json()) progress.emplace(terminal_);
  const absl::Time end = MonotonicNow() + Timeout(kJobTime);
  api::GetJobRequest request;
  request.set_job(id);
  std::string last;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kPause)) {
    absl::StatusOr<api::Job> now = controller.Ask(request, std::max(end - MonotonicNow(), absl::Milliseconds(1)));
    if (!now.ok()) {
      progress.reset();
      return Fail(now.status(), kJobTime, absl::StrCat("; job ", id, " goes on"));
    }
    *job = *std::move(now);
    if (const node::v1::Job own = AtItsNode(*job); progress.has_value() && own.state() == "running")
      progress->Show(absl::StrCat("job ", id), own.kind(), ShareDone(own), Achieved(own));
    std::string said = ToJsonLine(*job);
    if (json() && each && said != last) terminal_.out << said << std::flush;
    last = std::move(said);
    if (job->state() != "running") return job->state() == "cancelled" || !job->trouble().empty() ? kRefused : kOk;
    bool goes_on = true;
    if (terminal_.wait) {
      goes_on = terminal_.wait(pause);
    } else {
      absl::SleepFor(pause);
    }
    if (goes_on && MonotonicNow() < end) continue;
    progress.reset();
    terminal_.err << "kvistctl: job " << id << " goes on: `kvistctl --controller ADDRESS jobs watch " << id
                  << "` shows it, `jobs cancel " << id << "` stops it\n";
    return kUnavailable;
  }
}

ExitCode ControllerSession::Nodes() {
  api::HealthRequest request;
  if (!arguments_.node.empty()) request.add_nodes(arguments_.node);
  return Question(request);
}

ExitCode ControllerSession::QueryIp() {
  api::QueryIpRequest request;
  if (!arguments_.node.empty()) request.add_nodes(arguments_.node);
  return Question(request);
}

ExitCode ControllerSession::Lookup() {
  return WithPrompt<api::LookupRequest>([this](api::LookupRequest request) {
    if (!arguments_.node.empty()) request.add_nodes(arguments_.node);
    request.set_ask_nodes(true);  // who operates looks at what the last command has come to
    return Question(request);
  });
}

ExitCode ControllerSession::Clear() {
  const std::string where = arguments_.node.empty() ? "all nodes" : arguments_.node;
  const auto clear = [&](api::ClearRequest request, const std::string& what) {
    if (!arguments_.dry_run &&
        !Confirmed(absl::StrCat("Clear ", what, InTier(), " at ", where, "? ", WhatItCosts(), " [y/N] ")))
      return kUsage;
    request.set_node(arguments_.node);
    request.set_request(arguments_.request);
    request.set_tier(arguments_.tier);
    return Change(request, HowCleared());
  };
  if (arguments_.has_prompt()) {
    return WithPrompt<api::ClearRequest>([&](api::ClearRequest request) {
      return clear(std::move(request), arguments_.tier.empty()
                                           ? "this prompt, and all prompts that begin with its first chunk,"
                                           : "this prompt");
    });
  }
  api::ClearRequest request;
  *request.mutable_space() = arguments_.filter;
  const std::string& space = arguments_.filter.digest();
  request.set_everything(space.empty());
  return clear(std::move(request), space.empty() ? "every chunk of every space" : "every chunk of space " + space);
}

ExitCode ControllerSession::Move() {
  return WithPrompt<api::MoveRequest>([this](api::MoveRequest request) {
    request.mutable_source()->set_node(arguments_.node);
    request.mutable_source()->set_tier(arguments_.from);
    request.mutable_destination()->set_tier(arguments_.to);
    request.set_keep_source(arguments_.keep_source);
    request.set_request(arguments_.request);
    return Change(request, absl::StrCat("moved to ", arguments_.to, " as far as it isn't there"));
  });
}

ExitCode ControllerSession::Prefetch() {
  return WithPrompt<api::PrefetchRequest>([this](api::PrefetchRequest request) {
    request.set_node(arguments_.node);
    request.set_tier(arguments_.from);
    request.set_request(arguments_.request);
    return Change(request, "read into dram as far as it isn't there");
  });
}

ExitCode ControllerSession::Compress() {
  return WithPrompt<api::CompressRequest>([this](api::CompressRequest request) {
    request.set_node(arguments_.node);
    request.set_tier(arguments_.tier);
    request.set_method(arguments_.method);
    request.set_request(arguments_.request);
    return Change(request, absl::StrCat("encoded anew, as far as it is in ", arguments_.tier));
  });
}

ExitCode ControllerSession::Decompress() {
  return WithPrompt<api::DecompressRequest>([this](api::DecompressRequest request) {
    request.set_node(arguments_.node);
    request.set_tier(arguments_.tier);
    request.set_request(arguments_.request);
    return Change(request, absl::StrCat("encoded anew, as far as it is in ", arguments_.tier));
  });
}

ExitCode ControllerSession::ListJobs() {
  api::ListJobsRequest request;
  if (!arguments_.node.empty()) request.add_nodes(arguments_.node);
  return Question(request);
}

ExitCode ControllerSession::CancelJob() {
  api::CancelJobRequest request;
  request.set_job(arguments_.job);
  return Question(request);
}

ExitCode ControllerSession::WatchJob() {
  return WithController([this](ControllerClient& controller) {
    api::Job job;
    job.set_id(arguments_.job);
    const ExitCode code = Watch(controller, /*each=*/true, &job);
    if (!json() && code != kUnavailable && !job.state().empty()) terminal_.out << ToTable(job, Columns());
    return code;
  });
}

ExitCode ControllerSession::ListPins() {
  api::ListPinsRequest request;
  if (!arguments_.node.empty()) request.add_nodes(arguments_.node);
  return Question(request);
}

ExitCode ControllerSession::AddPin() {
  return WithPrompt<api::PinRequest>([this](api::PinRequest request) {
    request.set_node(arguments_.node);
    request.set_owner(arguments_.owner);
    request.set_seconds(absl::ToDoubleSeconds(arguments_.lasts));
    return WithController([&](ControllerClient& controller) {
      const absl::StatusOr<api::PinReply> pinned = controller.Ask(request, Timeout(kQuestionTime));
      const ExitCode code = Print(pinned, kQuestionTime);
      return code == kOk ? Of(*pinned) : code;
    });
  });
}

ExitCode ControllerSession::RemovePin() {
  api::UnpinRequest request;
  request.set_pin(arguments_.pin);
  return Question(request);
}

}  // namespace kvist::ctl
