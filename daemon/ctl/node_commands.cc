#include "daemon/ctl/node_commands.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "daemon/ctl/channel.h"
#include "daemon/ctl/doctor.h"
#include "daemon/ctl/fsck.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/top.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/state_dir.h"

namespace kvist::ctl {
namespace {

// Of an id that was found to be one.
uint64_t Number(const std::string& id) {
  uint64_t number = 0;
  return absl::SimpleAtoi(id, &number) ? number : 0;
}

}  // namespace

// ---- Questions --------------------------------------------------------------------------------------------------------------

template <class Ask>
ExitCode NodeSession::WithPrompt(Ask ask) {
  absl::StatusOr<node::v1::Prompt> prompt = ReadPrompt();
  return prompt.ok() ? ask(*std::move(prompt)) : kUsage;
}

template <class Ask>
ExitCode NodeSession::WithNode(Ask ask) {
  absl::StatusOr<NodeClient> node = NodeClient::Connect(arguments_.target);
  return node.ok() ? ask(*node) : NotReached(node.status());
}

ExitCode NodeSession::Status() {
  return WithNode([this](NodeClient& node) { return Print(node.Status(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::Ssd() {
  return WithNode([this](NodeClient& node) { return Print(node.Ssd(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::Sessions() {
  return WithNode([this](NodeClient& node) { return Print(node.Sessions(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::Reload() {
  return WithNode([this](NodeClient& node) {
    return Print(node.Reload(Timeout(kQuestionTime)), kQuestionTime, "; the reload goes on in the daemon");
  });
}

ExitCode NodeSession::Top() { return ctl::Top(arguments_, terminal_).Run(); }

ExitCode NodeSession::Doctor() {
  Patient patient;
  if (arguments_.target.address.is_tls()) {
    terminal_.err << "kvistctl: doctor looks at this machine and at a kvistd of it: name that by --socket\n";
    return kUsage;
  }
  patient.admin_socket = arguments_.target.address.socket;
  // The one of a kvistd that runs is what it says; of one that doesn't, what it would take.
  patient.state_dir = !arguments_.state_dir.empty()                                                  ? arguments_.state_dir
                      : absl::StartsWith(patient.admin_socket, absl::StrCat(kSystemRuntimeDir, "/")) ? kSystemStateDir
                                                                                                     : DefaultStateDir();
  patient.pid = ListenerOf(arguments_.target);
  absl::StatusOr<NodeClient> node = NodeClient::Connect(arguments_.target);
  absl::StatusOr<node::v1::StatusReply> status = node.ok() ? node->Status(Timeout(kQuestionTime)) : node.status();
  if (status.ok()) {
    patient.engine_socket = status->engine_socket();
    if (arguments_.state_dir.empty() && !status->state_dir().empty()) patient.state_dir = status->state_dir();
    patient.status = *std::move(status);
  } else {
    patient.why_no_status =
        absl::IsDeadlineExceeded(status.status()) ? absl::DeadlineExceededError(Late(kQuestionTime)) : status.status();
    const std::string& admin = patient.admin_socket;
    const size_t slash = admin.rfind('/');
    patient.engine_socket = absl::StrCat(slash == std::string::npos ? "." : admin.substr(0, slash), "/", kEngineSocketName);
  }
  const Diagnosis diagnosis = Diagnose(patient);
  terminal_.out << (arguments_.output == "json" ? ToJson(diagnosis) : ToTable(diagnosis, HasColours(), Columns()));
  return diagnosis.failed() ? kRefused : kOk;
}

ExitCode NodeSession::Fsck() {
  const std::string path =
      !arguments_.ssd_path.empty()
          ? arguments_.ssd_path
          : absl::StrCat(arguments_.state_dir.empty() ? DefaultStateDir() : arguments_.state_dir, "/ssd");
  return RunFsck(
      {.directories = absl::StrSplit(path, ':'), .repair = arguments_.repair, .json = arguments_.output == "json"},
      terminal_);
}

ExitCode NodeSession::Lookup() {
  return WithPrompt([this](node::v1::Prompt prompt) {
    node::v1::LookupRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    return WithNode([&](NodeClient& node) { return Print(node.Lookup(request, Timeout(kQuestionTime)), kQuestionTime); });
  });
}

ExitCode NodeSession::DryRun(node::v1::Prompt prompt, const std::string& what) {
  node::v1::LookupRequest request;
  *request.mutable_space() = arguments_.filter;
  *request.mutable_prompt() = std::move(prompt);
  return WithNode([&](NodeClient& node) {
    const ExitCode code = Print(node.Lookup(request, Timeout(kQuestionTime)), kQuestionTime);
    if (code == kOk && arguments_.output != "json") terminal_.out << "This would be " << what << ". Nothing was done.\n";
    return code;
  });
}

// ---- What changes what is there ---------------------------------------------------------------------------------------------

ExitCode NodeSession::Clear() { return arguments_.has_prompt() ? ClearPrompt() : ClearSpaces(); }

ExitCode NodeSession::ClearSpaces() {
  const std::string what =
      arguments_.space.empty() ? "every chunk of every space" : absl::StrCat("every chunk of space ", arguments_.space);
  if (!Confirmed(absl::StrCat("Clear ", what, InTier(), "? ", WhatItCosts(), " [y/N] "))) return kUsage;
  return WithNode([this](NodeClient& node) {
    node::v1::ClearRequest request;
    request.set_space(arguments_.space);
    request.set_request(arguments_.request);
    request.set_tier(arguments_.tier);
    const absl::StatusOr<node::v1::Job> job = node.Clear(request, Timeout(kQuestionTime));
    if (!job.ok()) return Print(job, kQuestionTime, "; if it has begun, the clear goes on in the daemon");
    return Watch(node, job->id(), Each::kNothing);
  });
}

ExitCode NodeSession::ClearPrompt() {
  return WithPrompt([this](node::v1::Prompt prompt) {
    const bool one_tier = !arguments_.tier.empty();
    if (arguments_.dry_run) return DryRun(std::move(prompt), HowCleared());
    const std::string others = one_tier ? "" : ", and all prompts that begin with its first chunk,";
    if (!Confirmed(
            absl::StrCat("Clear this prompt", others, InTier(), " in every space that fits? ", WhatItCosts(), " [y/N] ")))
      return kUsage;
    node::v1::ClearPromptRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    request.set_request(arguments_.request);
    request.set_tier(arguments_.tier);
    return WithNode([&](NodeClient& node) { return WatchAll(node, node.ClearPrompt(request, Timeout(kQuestionTime))); });
  });
}

ExitCode NodeSession::Move() {
  return WithPrompt([this](node::v1::Prompt prompt) {
    if (arguments_.dry_run)
      return DryRun(std::move(prompt), absl::StrCat("moved to ", arguments_.to, " as far as it isn't there"));
    node::v1::MoveRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    request.set_from(arguments_.from);
    request.set_to(arguments_.to);
    request.set_keep_source(arguments_.keep_source);
    request.set_node(arguments_.node);
    request.set_request(arguments_.request);
    return WithNode([&](NodeClient& node) { return WatchAll(node, node.Move(request, Timeout(kQuestionTime))); });
  });
}

ExitCode NodeSession::Prefetch() {
  return WithPrompt([this](node::v1::Prompt prompt) {
    if (arguments_.dry_run) return DryRun(std::move(prompt), "read into dram as far as it isn't there");
    node::v1::PrefetchRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    request.set_from(arguments_.from);
    request.set_node(arguments_.node);
    request.set_request(arguments_.request);
    return WithNode([&](NodeClient& node) { return WatchAll(node, node.Prefetch(request, Timeout(kQuestionTime))); });
  });
}

ExitCode NodeSession::Compress() { return Recode(/*compress=*/true); }

ExitCode NodeSession::Decompress() { return Recode(/*compress=*/false); }

ExitCode NodeSession::Recode(bool compress) {
  return WithPrompt([this, compress](node::v1::Prompt prompt) {
    if (arguments_.dry_run)
      return DryRun(std::move(prompt), absl::StrCat("encoded anew, as far as it is in ", arguments_.tier));
    const auto fill = [&](auto request) {
      *request.mutable_space() = arguments_.filter;
      *request.mutable_prompt() = std::move(prompt);
      request.set_tier(arguments_.tier);
      request.set_request(arguments_.request);
      return request;
    };
    return WithNode([&](NodeClient& node) {
      if (!compress) return WatchAll(node, node.Decompress(fill(node::v1::DecompressRequest()), Timeout(kQuestionTime)));
      node::v1::CompressRequest request = fill(node::v1::CompressRequest());
      request.set_method(arguments_.method);
      return WatchAll(node, node.Compress(request, Timeout(kQuestionTime)));
    });
  });
}

// ---- Jobs, pins, quotas -----------------------------------------------------------------------------------------------------

ExitCode NodeSession::ListJobs() {
  return WithNode([this](NodeClient& node) { return Print(node.ListJobs(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::CancelJob() {
  return WithNode([this](NodeClient& node) {
    return Print(node.CancelJob(Number(arguments_.job), Timeout(kQuestionTime)), kQuestionTime);
  });
}

ExitCode NodeSession::WatchJob() {
  return WithNode([this](NodeClient& node) { return Watch(node, Number(arguments_.job), Each::kJsonLine); });
}

ExitCode NodeSession::WatchAll(NodeClient& node, absl::StatusOr<node::v1::PromptJobsReply> jobs) {
  if (!jobs.ok()) return Print(jobs, kQuestionTime, "; what has begun goes on in the daemon");
  ExitCode all = kOk;
  for (node::v1::Job& job : *jobs->mutable_jobs()) {
    const ExitCode code = Watch(node, job.id(), Each::kNothing, &job);
    if (code != kOk && code != kRefused) return code;
    if (code != kOk) all = code;
  }
  Print(jobs, kQuestionTime);
  return all;
}

ExitCode NodeSession::Watch(NodeClient& node, uint64_t id, Each each, node::v1::Job* at_end) {
  const bool json = arguments_.output == "json";
  std::optional<JobProgress> progress;
  if (!json) progress.emplace(terminal_);
  const absl::StatusOr<node::v1::Job> job = node.WatchJob(id, Timeout(kJobTime), [&](const node::v1::Job* now) {
    if (now != nullptr && progress.has_value()) progress->Show(*now);
    if (now != nullptr && json && each == Each::kJsonLine) terminal_.out << ToJsonLine(*now) << std::flush;
    return !terminal_.wait || terminal_.wait(absl::ZeroDuration());
  });
  progress.reset();
  if (absl::IsCancelled(job.status())) {
    terminal_.err << "kvistctl: job " << id << " goes on in the daemon: `kvistctl jobs watch " << id
                  << "` shows it, `kvistctl jobs cancel " << id << "` stops it\n";
    return kUnavailable;
  }
  if (!job.ok()) return Print(job, kJobTime, absl::StrCat("; job ", id, " goes on in the daemon"));
  if (at_end != nullptr) {
    *at_end = *job;
  } else if (!json || each == Each::kNothing) {
    Print(job, kJobTime);
  }
  return job->state() == "cancelled" || !job->trouble().empty() ? kRefused : kOk;
}

ExitCode NodeSession::AddPin() {
  return WithPrompt([this](node::v1::Prompt prompt) {
    node::v1::AddPinRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    request.set_owner(arguments_.owner);
    request.set_seconds(absl::ToDoubleSeconds(arguments_.lasts));
    return WithNode([&](NodeClient& node) { return Print(node.AddPin(request, Timeout(kQuestionTime)), kQuestionTime); });
  });
}

ExitCode NodeSession::ListPins() {
  return WithNode([this](NodeClient& node) { return Print(node.ListPins(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::RemovePin() {
  return WithNode([this](NodeClient& node) {
    return Print(node.RemovePin(Number(arguments_.pin), Timeout(kQuestionTime)), kQuestionTime);
  });
}

ExitCode NodeSession::ListQuotas() {
  return WithNode([this](NodeClient& node) { return Print(node.ListQuotas(Timeout(kQuestionTime)), kQuestionTime); });
}

ExitCode NodeSession::SetQuota() { return SetQuotaTo(arguments_.quota); }

ExitCode NodeSession::UnsetQuota() { return SetQuotaTo(Bytes{}); }

ExitCode NodeSession::SetQuotaTo(Bytes bytes) {
  return WithNode([this, bytes](NodeClient& node) {
    return Print(node.SetQuota(arguments_.tenant, bytes, Timeout(kQuestionTime)), kQuestionTime);
  });
}

}  // namespace kvist::ctl
