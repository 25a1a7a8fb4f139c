#include "daemon/ctl/controller_commands.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/table.h"
#include "storage/base/clock.h"

namespace kvist::ctl {

namespace api = controller::v1;

namespace {

// Between two looks at a job: short at first, because most are over soon.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(200);

// A look at jobs has so long, or all the time that the user gives, also when that is nearly over: who answers is to be heard.
constexpr absl::Duration kLookTime = absl::Seconds(1);

bool IsSilent(int32_t code) {
  return code == static_cast<int>(absl::StatusCode::kUnavailable) ||
         code == static_cast<int>(absl::StatusCode::kDeadlineExceeded);
}

// Whether a node has done what it was asked. In a question, "no space fits" is an answer, too.
bool HasDone(const api::Outcome& outcome) { return outcome.code() == 0; }
bool HasAnswered(const api::Outcome& outcome) {
  return outcome.code() == 0 || outcome.code() == static_cast<int>(absl::StatusCode::kNotFound);
}

template <class Reply>
ExitCode OfChange(const Reply& reply) {
  return std::all_of(reply.nodes().begin(), reply.nodes().end(), HasDone) ? kOk : kRefused;
}

template <class Reply>
ExitCode OfQuestion(const Reply& reply) {
  if (std::any_of(reply.nodes().begin(), reply.nodes().end(), HasAnswered)) return kOk;
  const bool all_silent = std::all_of(reply.nodes().begin(), reply.nodes().end(),
                                      [](const api::Outcome& outcome) { return IsSilent(outcome.code()); });
  return all_silent ? kUnavailable : kRefused;
}

// Whether these are the words of a node, which a controller passes on with its name before them: "node-a: no answer in time".
bool IsOfNode(const absl::Status& why) {
  const size_t end = why.message().find(": ");
  return IsSilent(static_cast<int>(why.code())) && end != absl::string_view::npos && end > 0 &&
         std::all_of(why.message().begin(), why.message().begin() + static_cast<ptrdiff_t>(end), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
         });
}

// That something is wrong with a job of a node: besides what is wrong there already.
void Blame(const std::string& node, absl::StatusCode code, const std::string& why, api::JobsReply* jobs) {
  for (api::Outcome& outcome : *jobs->mutable_nodes()) {
    if (outcome.node() != node) continue;
    outcome.set_message(outcome.code() == 0 ? why : absl::StrCat(outcome.message(), "; ", why));
    outcome.set_code(static_cast<int>(code));
  }
}

// Jobs on one thing as one, for a bar.
node::v1::Job SumOf(const api::JobsReply& jobs) {
  node::v1::Job sum = AtItsNode(jobs.jobs(0));
  for (int i = 1; i < jobs.jobs_size(); ++i) {
    sum.set_done(sum.done() + jobs.jobs(i).done());
    sum.set_total(sum.total() + jobs.jobs(i).total());
    sum.set_chunks(sum.chunks() + jobs.jobs(i).chunks());
    sum.set_bytes(sum.bytes() + jobs.jobs(i).bytes());
    sum.set_bytes_per_second(sum.bytes_per_second() + jobs.jobs(i).bytes_per_second());
    sum.set_seconds_left(std::max(sum.seconds_left(), jobs.jobs(i).seconds_left()));
  }
  return sum;
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

template <class Reply, class IsFine>
void ControllerSession::NameOthers(const Reply& reply, IsFine is_fine) const {
  for (const api::Outcome& outcome : reply.nodes()) {
    if (!is_fine(outcome))
      terminal_.err << "kvistctl: " << Printable(outcome.node()) << ": " << Printable(outcome.message()) << "\n";
  }
}

ExitCode ControllerSession::FailAt(const absl::Status& why, absl::Duration time, ExitCode of_node,
                                   absl::string_view note_when_late) const {
  if (!IsOfNode(why)) return Fail(why, time, note_when_late);
  terminal_.err << "kvistctl: " << Printable(why.message()) << note_when_late << "\n";
  return of_node;
}

template <class Request>
ExitCode ControllerSession::Question(const Request& request) {
  return WithController([&](ControllerClient& controller) {
    const auto reply = controller.Ask(request, Timeout(kQuestionTime));
    if (const ExitCode code = Print(reply, kQuestionTime); code != kOk) return code;
    NameOthers(*reply, HasAnswered);
    return OfQuestion(*reply);
  });
}

template <class Request>
ExitCode ControllerSession::ChangeAtOnce(const Request& request) {
  return WithController([&](ControllerClient& controller) {
    const auto reply = controller.Ask(request, Timeout(kQuestionTime));
    return reply.ok() ? Print(reply, kQuestionTime) : FailAt(reply.status(), kQuestionTime, kRefused);
  });
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
    if (!jobs.ok()) return FailAt(jobs.status(), kQuestionTime, kRefused, "; what has begun goes on in the nodes");
    const ExitCode code = WatchAll(controller, &*jobs);
    Print(jobs, kQuestionTime);
    NameOthers(*jobs, HasDone);
    return code;
  });
}

// All are looked at together, so that a node that hangs costs its own job and nobody else's.
ExitCode ControllerSession::WatchAll(ControllerClient& controller, api::JobsReply* jobs) {
  const absl::Time end = MonotonicNow() + Timeout(kJobTime);
  std::optional<JobProgress> progress;
  if (!json()) progress.emplace(terminal_);
  std::map<std::string, api::Job*> missing;  // by id: those that run as far as is known
  const auto ended = [&](const api::Job& job) {
    if (job.state() == "cancelled")
      Blame(job.node(), absl::StatusCode::kCancelled, absl::StrCat("job ", job.id(), " was cancelled"), jobs);
    if (!job.trouble().empty())
      Blame(job.node(), absl::StatusCode::kAborted, absl::StrCat("job ", job.id(), ": ", job.trouble()), jobs);
  };
  for (api::Job& job : *jobs->mutable_jobs()) {
    if (job.state() == "running") {
      missing[job.id()] = &job;
    } else {
      ended(job);
    }
  }
  for (absl::Duration pause = kFirstPause; !missing.empty(); pause = std::min(2 * pause, kPause)) {
    api::ListJobsRequest request;
    std::set<std::string> nodes;
    for (const auto& [id, job] : missing) nodes.insert(job->node());
    request.mutable_nodes()->Assign(nodes.begin(), nodes.end());
    const absl::StatusOr<api::ListJobsReply> now =
        controller.Ask(request, std::max(end - MonotonicNow(), std::min(kLookTime, Timeout(kJobTime))));
    if (!now.ok()) {
      progress.reset();
      for (const auto& [id, job] : missing)
        Blame(job->node(), now.status().code(), absl::StrCat("job ", id, " goes on, unless it has ended"), jobs);
      return Fail(now.status(), kJobTime);
    }
    std::set<std::string> running;  // ids
    for (const api::Job& job : now->jobs()) {
      const auto found = missing.find(job.id());
      if (found == missing.end()) continue;
      *found->second = job;
      if (job.state() == "running") {
        running.insert(job.id());
      } else {
        missing.erase(found);
        ended(job);
      }
    }
    for (const api::Outcome& outcome : now->nodes()) {
      for (auto job = missing.begin(); job != missing.end();) {
        if (job->second->node() != outcome.node() || running.count(job->first) > 0) {
          ++job;
          continue;
        }
        const std::string why = outcome.code() != 0
                                    ? absl::StrCat("goes on, unless it has ended: ", outcome.message())
                                    : "isn't listed any more: it ended long ago, or the node was started again";
        const int code = outcome.code() != 0 ? outcome.code() : static_cast<int>(absl::StatusCode::kNotFound);
        Blame(outcome.node(), static_cast<absl::StatusCode>(code), absl::StrCat("job ", job->first, " ", why), jobs);
        job = missing.erase(job);
      }
    }
    if (missing.empty()) break;
    if (progress.has_value()) {
      const node::v1::Job sum = SumOf(*jobs);
      progress->Show(
          jobs->jobs_size() == 1 ? absl::StrCat("job ", jobs->jobs(0).id()) : absl::StrCat(jobs->jobs_size(), " jobs"),
          sum.kind(), ShareDone(sum), Achieved(sum) + PaceOf(sum));
    }
    bool goes_on = true;
    if (terminal_.wait) {
      goes_on = terminal_.wait(pause);
    } else {
      absl::SleepFor(pause);
    }
    if (goes_on && MonotonicNow() < end) continue;
    const ExitCode others = OfChange(*jobs);
    for (const auto& [id, job] : missing) {
      Blame(job->node(), absl::StatusCode::kDeadlineExceeded,
            absl::StrCat("job ", id, " goes on: `kvistctl --controller ADDRESS jobs watch ", id, "` shows it, `jobs cancel ",
                         id, "` stops it"),
            jobs);
    }
    return others == kOk ? kUnavailable : others;
  }
  return OfChange(*jobs);
}

ExitCode ControllerSession::Watch(ControllerClient& controller, api::Job* job) {
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
      return FailAt(now.status(), kJobTime, kUnavailable, absl::StrCat("; job ", id, " goes on"));
    }
    *job = *std::move(now);
    if (const node::v1::Job own = AtItsNode(*job); progress.has_value() && own.state() == "running")
      progress->Show(absl::StrCat("job ", id), own.kind(), ShareDone(own), Achieved(own) + PaceOf(own));
    api::Job progress_alone = *job;
    progress_alone.clear_seconds();
    progress_alone.clear_bytes_per_second();
    progress_alone.clear_seconds_left();
    std::string said = ToJsonLine(progress_alone);  // time passes whether it gets on or not
    if (json() && said != last) terminal_.out << ToJsonLine(*job) << std::flush;
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
  return ChangeAtOnce(request);
}

ExitCode ControllerSession::WatchJob() {
  return WithController([this](ControllerClient& controller) {
    api::Job job;
    job.set_id(arguments_.job);
    const ExitCode code = Watch(controller, &job);
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
      if (!pinned.ok()) return FailAt(pinned.status(), kQuestionTime, kRefused);
      Print(pinned, kQuestionTime);
      NameOthers(*pinned, HasDone);
      return OfChange(*pinned);
    });
  });
}

ExitCode ControllerSession::RemovePin() {
  api::UnpinRequest request;
  request.set_pin(arguments_.pin);
  return ChangeAtOnce(request);
}

}  // namespace kvist::ctl
