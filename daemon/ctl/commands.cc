#include "daemon/ctl/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "daemon/ctl/arguments.h"
#include "daemon/ctl/channel.h"
#include "daemon/ctl/completion.h"
#include "daemon/ctl/controller_commands.h"
#include "daemon/ctl/conversation.h"
#include "daemon/ctl/doctor.h"
#include "daemon/ctl/fsck.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/node_client.h"
#include "daemon/ctl/render.h"
#include "daemon/ctl/top.h"
#include "daemon/ctl/wrap.h"
#include "daemon/ctl/wrong_usage.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/state_dir.h"

namespace kvist::ctl {
namespace {

constexpr absl::Duration kTimeMax = absl::Minutes(10);  // the daemon waits no longer
constexpr absl::Duration kPinTimeMax = absl::Hours(24 * 365);

constexpr char kExitCodes[] =
    "exit status: 0 done, or of a question to several nodes: one has answered; 1 the daemon refused, some node hasn't made "
    "a "
    "change, doctor or fsck found what fails, or a job was cancelled; 2 wrong usage, or a clear that was not confirmed; 3 "
    "no "
    "daemon, no answer in time (of several nodes: from none), a job that goes on, or a tier that fsck can't have";

// The commands that speak to one kvistd.
class Session : private Conversation {
 public:
  using Conversation::Conversation;

  ExitCode Status() {
    return WithNode([this](NodeClient& node) { return Print(node.Status(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode Ssd() {
    return WithNode([this](NodeClient& node) { return Print(node.Ssd(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode Sessions() {
    return WithNode([this](NodeClient& node) { return Print(node.Sessions(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode Reload() {
    return WithNode([this](NodeClient& node) {
      return Print(node.Reload(Timeout(kQuestionTime)), kQuestionTime, "; the reload goes on in the daemon");
    });
  }
  ExitCode Doctor() {
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
      patient.engine_socket =
          absl::StrCat(slash == std::string::npos ? "." : admin.substr(0, slash), "/", kEngineSocketName);
    }
    const Diagnosis diagnosis = Diagnose(patient);
    terminal_.out << (arguments_.output == "json" ? ToJson(diagnosis) : ToTable(diagnosis, HasColours(), Columns()));
    return diagnosis.failed() ? kRefused : kOk;
  }
  ExitCode Fsck() {
    const std::string path =
        !arguments_.ssd_path.empty()
            ? arguments_.ssd_path
            : absl::StrCat(arguments_.state_dir.empty() ? DefaultStateDir() : arguments_.state_dir, "/ssd");
    return RunFsck(
        {.directories = absl::StrSplit(path, ':'), .repair = arguments_.repair, .json = arguments_.output == "json"},
        terminal_);
  }
  ExitCode Clear() {
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
  ExitCode ClearPrompt() {
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
  ExitCode Move() {
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
  ExitCode Prefetch() {
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
  ExitCode Recode(bool compress) {
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
  ExitCode ListJobs() {
    return WithNode([this](NodeClient& node) { return Print(node.ListJobs(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode CancelJob() {
    return WithNode([this](NodeClient& node) {
      return Print(node.CancelJob(Number(arguments_.job), Timeout(kQuestionTime)), kQuestionTime);
    });
  }
  ExitCode WatchJob() {
    return WithNode([this](NodeClient& node) { return Watch(node, Number(arguments_.job), Each::kJsonLine); });
  }
  ExitCode Lookup() {
    return WithPrompt([this](node::v1::Prompt prompt) {
      node::v1::LookupRequest request;
      *request.mutable_space() = arguments_.filter;
      *request.mutable_prompt() = std::move(prompt);
      return WithNode([&](NodeClient& node) { return Print(node.Lookup(request, Timeout(kQuestionTime)), kQuestionTime); });
    });
  }
  ExitCode AddPin() {
    return WithPrompt([this](node::v1::Prompt prompt) {
      node::v1::AddPinRequest request;
      *request.mutable_space() = arguments_.filter;
      *request.mutable_prompt() = std::move(prompt);
      request.set_owner(arguments_.owner);
      request.set_seconds(absl::ToDoubleSeconds(arguments_.lasts));
      return WithNode([&](NodeClient& node) { return Print(node.AddPin(request, Timeout(kQuestionTime)), kQuestionTime); });
    });
  }
  ExitCode ListPins() {
    return WithNode([this](NodeClient& node) { return Print(node.ListPins(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode RemovePin() {
    return WithNode([this](NodeClient& node) {
      return Print(node.RemovePin(Number(arguments_.pin), Timeout(kQuestionTime)), kQuestionTime);
    });
  }
  ExitCode ListQuotas() {
    return WithNode([this](NodeClient& node) { return Print(node.ListQuotas(Timeout(kQuestionTime)), kQuestionTime); });
  }
  ExitCode SetQuota(Bytes bytes) {
    return WithNode([this, bytes](NodeClient& node) {
      return Print(node.SetQuota(arguments_.tenant, bytes, Timeout(kQuestionTime)), kQuestionTime);
    });
  }

 private:
  // What -o json prints while a job goes on, besides the job at its end.
  enum class Each { kNothing, kJsonLine };

  ExitCode DryRun(node::v1::Prompt prompt, const std::string& what) {
    node::v1::LookupRequest request;
    *request.mutable_space() = arguments_.filter;
    *request.mutable_prompt() = std::move(prompt);
    return WithNode([&](NodeClient& node) {
      const ExitCode code = Print(node.Lookup(request, Timeout(kQuestionTime)), kQuestionTime);
      if (code == kOk && arguments_.output != "json") terminal_.out << "This would be " << what << ". Nothing was done.\n";
      return code;
    });
  }

  // Waits for the jobs on a prompt, one after the other, as they run.
  ExitCode WatchAll(NodeClient& node, absl::StatusOr<node::v1::PromptJobsReply> jobs) {
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

  // Of an id that was found to be one.
  static uint64_t Number(const std::string& id) {
    uint64_t number = 0;
    return absl::SimpleAtoi(id, &number) ? number : 0;
  }

  // Waits for a job to end, and shows meanwhile how far it is. `at_end`: what it was then goes there, and isn't printed.
  ExitCode Watch(NodeClient& node, uint64_t id, Each each, node::v1::Job* at_end = nullptr) {
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

  template <class Ask>
  ExitCode WithPrompt(Ask ask) {
    absl::StatusOr<node::v1::Prompt> prompt = ReadPrompt();
    return prompt.ok() ? ask(*std::move(prompt)) : kUsage;
  }

  template <class Ask>
  ExitCode WithNode(Ask ask) {
    absl::StatusOr<NodeClient> node = NodeClient::Connect(arguments_.target);
    return node.ok() ? ask(*node) : NotReached(node.status());
  }
};

// "" when `text` can be the id of a `noun`: of a kvistd a number, of a controller NODE/NUMBER.
std::string CheckId(const std::string& text, absl::string_view noun) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text.substr(text.rfind('/') + 1), &number)
             ? ""
             : absl::StrCat("\"", text, "\"; allowed: the number of a ", noun, ", of a controller NODE/NUMBER");
}

// "" when `text` is an address.
std::string CheckAddress(const std::string& text, endpoint::Address* address) {
  const std::optional<endpoint::Address> parsed = endpoint::ParseAddress(text);
  if (!parsed.has_value()) return absl::StrCat("\"", text, "\"; allowed: ", endpoint::kAddressAllowed);
  *address = *parsed;
  return "";
}

// "" when `text` is a time between two looks.
std::string CheckInterval(const std::string& text, absl::Duration* interval) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(100) || duration > absl::Hours(1))
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 1s or 500ms, from 100ms to 1h");
  *interval = duration;
  return "";
}

// "" when `text` is a quota to set.
std::string CheckQuota(const std::string& text, Bytes* quota) {
  const std::optional<Bytes> bytes = ParseBytes(text);
  if (!bytes.has_value() || *bytes == Bytes{})
    return absl::StrCat("\"", text, "\"; allowed: bytes, or with a unit such as 8GiB (B, KiB, MiB, GiB, TiB)");
  *quota = *bytes;
  return "";
}

// "" when `text` is a duration that may be waited for.
std::string CheckTimeout(const std::string& text, std::optional<absl::Duration>* timeout) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(1) || duration > kTimeMax) {
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 5s or 500ms, from 1ms to ",
                        absl::FormatDuration(kTimeMax));
  }
  *timeout = duration;
  return "";
}

// "" when a pin can last so long.
std::string CheckLasts(const std::string& text, absl::Duration* lasts) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Seconds(1) || duration > kPinTimeMax)
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 30m or 12h, from 1s to a year");
  *lasts = duration;
  return "";
}

// Whether a command is about a prompt, or may be.
enum class PromptIs { kNeeded, kOptional };

// The options that name a prompt, and the spaces in which to look for it.
void AddPromptOptions(CLI::App* command, Arguments* given, PromptIs is = PromptIs::kNeeded) {
  const auto text = [given](std::string* (node::v1::SpaceFilter::*field)()) {
    return [given, field](const std::string& value) { *(given->filter.*field)() = value; };
  };
  CLI::Option* tokens =
      command->add_option("--tokens", given->tokens, "File with its token ids (as text or a JSON list); - for stdin")
          ->type_name("FILE");
  CLI::Option* keys = command->add_option("--keys", given->keys, "Instead: file with the keys of its chunks, in hex")
                          ->type_name("FILE")
                          ->excludes(tokens);
  // Those that only a prompt has a use for.
  std::vector<CLI::Option*> others;
  if (is == PromptIs::kNeeded) {
    command
        ->add_option_function<std::string>("--space", text(&node::v1::SpaceFilter::mutable_digest),
                                           "Only in spaces whose digest begins so (default: in all)")
        ->type_name("DIGEST");
  }
  others.push_back(
      command
          ->add_option_function<std::string>("--model", text(&node::v1::SpaceFilter::mutable_model), "Only in this model's")
          ->type_name("NAME"));
  others.push_back(command
                       ->add_option_function<std::string>("--tenant", text(&node::v1::SpaceFilter::mutable_tenant),
                                                          "Only in this tenant's")
                       ->type_name("NAME"));
  others.push_back(command->add_option("--salt", given->salt, "The request's salt, if it has one (vLLM: cache_salt)")
                       ->type_name("TEXT")
                       ->excludes(keys));
  others.push_back(
      command->add_option("--lora", given->lora, "Its adapter, if it has one")->type_name("NAME")->excludes(keys));
  if (is == PromptIs::kOptional)
    others.push_back(command->add_flag("--dry-run", given->dry_run, "Of a prompt: say what is there of it, and do nothing"));
  command->callback([tokens, keys, is, others] {
    if (tokens->count() + keys->count() > 0) return;
    if (is == PromptIs::kNeeded) throw CLI::RequiredError("--tokens or --keys");
    for (const CLI::Option* other : others) {
      if (other->count() > 0) throw CLI::RequiresError(other->get_name(), "--tokens or --keys");
    }
  });
}

// What all jobs that a command starts have.
void AddRequestOption(CLI::App* command, Arguments* given) {
  command
      ->add_option("--request", given->request,
                   "A name for this: asking again under it (after a lost answer) finds the same job, and starts none")
      ->type_name("NAME");
}

}  // namespace

ExitCode Run(const std::vector<std::string>& arguments, const Terminal& terminal) {
  Arguments given;
  given.target = {.address = {.socket = DefaultSocket()}, .tls = DefaultTlsFiles()};
  CLI::App app("Shows and steers the kvistd of this machine.", "kvistctl");
  app.get_formatter()->column_width(kHelpColumn);
  app.footer(kExitCodes);
  app.set_version_flag("--version", "kvistctl " KVIST_VERSION);
  app.require_subcommand(1);
  app.failure_message(&WrongUsage);
  app.fallthrough();  // the options below may also stand behind the command
  CLI::Option* socket = app.add_option("--socket", given.target.address.socket,
                                       "Admin socket of the kvistd (default: $KVIST_ADMIN_SOCKET, else your own daemon's, "
                                       "else the system's)")
                            ->type_name("PATH")
                            ->check([](const std::string& path) { return path.empty() ? "empty; allowed: a path" : ""; });
  CLI::Option* address =
      app.add_option(
             "--address",
             "Instead: unix:PATH, or tls:HOST:PORT, the admin.listen of a kvistd elsewhere; then the next three, too")
          ->type_name("ADDRESS")
          ->excludes(socket)
          ->check([&](const std::string& text) { return CheckAddress(text, &given.target.address); });
  app.add_option(
         "--controller",
         "Ask the kvist-controller there, unix:PATH or tls:HOST:PORT, for all its nodes: nodes, query-ip, lookup, clear, "
         "move, prefetch, compress, decompress, jobs, pins")
      ->type_name("ADDRESS")
      ->excludes(socket, address)
      ->check([&](const std::string& text) {
        given.by_controller = true;
        given.target.program = kControllerProgram;
        return CheckAddress(text, &given.target.address);
      });
  app.add_option("--node", given.node, "Of a controller's nodes only this one, by its name")->type_name("NAME");
  app.add_option("--tls-certificate", given.target.tls.certificate,
                 "By TLS: file with your certificate, PEM (default: $KVIST_TLS_CERTIFICATE)")
      ->type_name("FILE");
  app.add_option("--tls-key", given.target.tls.key, "By TLS: file with its key (default: $KVIST_TLS_KEY)")
      ->type_name("FILE");
  app.add_option("--tls-ca", given.target.tls.ca,
                 "By TLS: file with the certificates of who signs kvistds' (default: $KVIST_TLS_CA)")
      ->type_name("FILE");
  app.add_option("-o,--output", given.output, "How to print: table, or json with the field names of proto/node.proto")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORMAT");
  app.add_option("--timeout", "How long to wait for an answer (default: 5s), or for a job to end (60s)")
      ->type_name("DURATION")
      ->check([&](const std::string& text) { return CheckTimeout(text, &given.timeout); });
  const CLI::App* status = app.add_subcommand("status", "What the daemon holds, and how well it serves");
  const CLI::App* ssd =
      app.add_subcommand("ssd", "The tier on disk: its devices, what they hold, do and have found wrong, and its catalog");
  const CLI::App* nodes =
      app.add_subcommand("nodes", "The nodes of a kvist-controller (--controller), and how they are; of a kvistd: itself");
  const CLI::App* query_ip =
      app.add_subcommand("query-ip", "Where the nodes of a controller are, and the IP addresses of their machines");
  const CLI::App* sessions = app.add_subcommand("sessions", "The engine processes that are connected");
  CLI::App* top =
      app.add_subcommand("top", "How busy the daemon is, live: pool, hit rate, throughput, latencies, who does what");
  top->add_flag("--once", given.once, "Look once, for one interval, and end; with -o json: one object, else one a line");
  top->add_option("--interval", "Time between two looks (default: 1s)")
      ->type_name("DURATION")
      ->check([&](const std::string& text) { return CheckInterval(text, &given.interval); });
  CLI::App* doctor =
      app.add_subcommand("doctor", "What keeps kvistd from serving well on this machine, and the commands that mend it");
  doctor->add_option("--state-dir", given.state_dir, "State directory of the kvistd (default: this user's)")
      ->type_name("PATH");
  CLI::App* fsck = app.add_subcommand(
      "fsck", "Read the tier on disk of a kvistd that doesn't run, all of it, and say what in it is damaged");
  fsck->add_flag("--repair", given.repair, "Mend its catalog, as the user whose it is: it then leads to good records only");
  fsck->add_option("--path", given.ssd_path, "Its directories, as ssd.path has them (default: ssd in the state directory)")
      ->type_name("PATH[:PATH..]");
  fsck->add_option("--state-dir", given.state_dir, "State directory of the kvistd (default: this user's)")
      ->type_name("PATH");
  CLI::App* lookup = app.add_subcommand("lookup", "How much of a prompt is there, and where; nothing is used or moved");
  AddPromptOptions(lookup, &given);
  CLI::App* clear = app.add_subcommand(
      "clear", "Forget chunks, of a prompt or all: no lookup finds them any more, and their memory is free");
  clear->add_option("--space", given.space, "Only this space: its digest as in `kvistctl status`, or the beginning of it")
      ->type_name("DIGEST");
  clear
      ->add_option("--tier", given.tier,
                   "Only what this tier has: dram, ssd or remote:NAME (of a store that nodes share: for all of them)")
      ->type_name("TIER");
  clear->add_flag("--yes", given.yes, "Don't ask");
  AddRequestOption(clear, &given);
  AddPromptOptions(clear, &given, PromptIs::kOptional);
  CLI::App* move = app.add_subcommand("move", "Have what is there of a prompt in another tier; what is in use stays");
  CLI::App* prefetch =
      app.add_subcommand("prefetch", "Have what is there of a prompt read into DRAM before it is asked for");
  for (CLI::App* one : {move, prefetch}) {
    AddPromptOptions(one, &given);
    CLI::Option* from =
        one->add_option("--from", given.from, "The tier where it is: dram, ssd or remote:NAME")->type_name("TIER");
    if (one == move) {
      from->required();
      one->add_option("--to", given.to, "The tier where it is to be: dram, ssd or remote:NAME")
          ->required()
          ->type_name("TIER");
      one->add_flag("--keep-source", given.keep_source, "Leave it where it is, too");
    }
    one->add_flag("--dry-run", given.dry_run, "Say what is there of it, and do nothing");
    AddRequestOption(one, &given);
  }
  CLI::App* compress =
      app.add_subcommand("compress", "Encode what a remote tier has of a prompt in fewer bytes, where it lies");
  CLI::App* decompress =
      app.add_subcommand("decompress", "Have what a remote tier has of a prompt lie there as engines store it");
  for (CLI::App* one : {compress, decompress}) {
    AddPromptOptions(one, &given);
    one->add_option("--tier", given.tier, "The tier where it lies, as in `kvistctl status`: remote:NAME")
        ->required()
        ->type_name("TIER");
    if (one == compress) {
      one->add_option("--method", given.method,
                      "lossless, or with loss, which engines then load: int8, int4, fp8, strongest")
          ->required()
          ->type_name("METHOD");
    }
    one->add_flag("--dry-run", given.dry_run, "Say what is there of it, and do nothing");
    AddRequestOption(one, &given);
  }
  CLI::App* jobs =
      app.add_subcommand("jobs", "The long operations: those that run, resumed after a restart, and those that ended last");
  jobs->require_subcommand(0, 1);
  const CLI::App* list_jobs = jobs->add_subcommand("list", "List them; so does `jobs` alone");
  CLI::App* cancel_job =
      jobs->add_subcommand("cancel", "Stop a job where it is: what a clear has not freed stays hidden, and goes later");
  CLI::App* watch_job =
      jobs->add_subcommand("watch", "Show how far a job is until it has ended; with -o json: an object a line");
  for (CLI::App* one : {cancel_job, watch_job}) {
    one->add_option("id", given.job, "Which, as in `jobs list`")
        ->required()
        ->type_name("ID")
        ->check([](const std::string& text) { return CheckId(text, "job"); });
  }
  CLI::App* quota = app.add_subcommand("quota", "How much of the pool each tenant has, and may have");
  quota->require_subcommand(0, 1);
  const CLI::App* list_quotas =
      quota->add_subcommand("list", "List tenants, their quotas and evictions; so does `quota` alone");
  CLI::App* set_quota = quota->add_subcommand(
      "set", "Give a tenant a quota, at once; a reload or restart brings back what [quotas] of the configuration says");
  CLI::App* unset_quota = quota->add_subcommand("unset", "End a tenant's quota, until a reload or restart as above");
  for (CLI::App* one : {set_quota, unset_quota}) {
    one->add_option("tenant", given.tenant, "Which: a name of [tenants], or uid:N")->required()->type_name("TENANT");
  }
  set_quota->add_option("bytes", "How much, such as 8GiB")
      ->required()
      ->type_name("BYTES")
      ->check([&](const std::string& text) { return CheckQuota(text, &given.quota); });
  CLI::App* pins = app.add_subcommand("pins", "Prompts that engines or operators have pinned");
  pins->require_subcommand(0, 1);
  const CLI::App* list_pins = pins->add_subcommand("list", "List them and their owners; so does `pins` alone");
  CLI::App* add_pin = pins->add_subcommand(
      "add",
      "Keep what is there of a prompt from eviction; again by the same owner: the same pin, which lasts as said last");
  AddPromptOptions(add_pin, &given);
  add_pin->add_option("--owner", given.owner, "Who wants it (default: operator)")->type_name("NAME");
  add_pin->add_option("--for", "How long it lasts (default: until it is removed)")
      ->type_name("DURATION")
      ->check([&](const std::string& text) { return CheckLasts(text, &given.lasts); });
  CLI::App* remove_pin =
      pins->add_subcommand("remove", "End a pin, however often it was pinned: its chunks may go when room is needed");
  remove_pin->add_option("pin", given.pin, "Which, as in `pins`")
      ->required()
      ->type_name("PIN")
      ->check([](const std::string& text) { return CheckId(text, "pin"); });
  const CLI::App* reload = app.add_subcommand(
      "reload", "Read the configuration again: all of it is put in force that needs no restart, or nothing if it is wrong");
  CLI::App* completion =
      app.add_subcommand("completion", "Print what a shell needs to complete kvistctl: source <(kvistctl completion bash)");
  completion->add_option("shell", given.shell, "Which shell")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  const CLI::App* man = app.add_subcommand("man", "Print the manual page, in roff: kvistctl man | man -l -");

  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    const bool asked = app.exit(error, help, terminal.err) == 0;
    const std::optional<Terminal::Size> size = terminal.size ? terminal.size() : std::nullopt;
    terminal.out << WrapHelp(help.str(), size.value_or(Terminal::Size()).columns);
    return asked ? kOk : kUsage;
  }
  if (completion->parsed() || man->parsed()) {
    terminal.out << (man->parsed() ? ManPage(app, 1) : Completion(app, given.shell));
    return kOk;
  }
  const auto wrong = [&terminal](absl::string_view why) {
    terminal.err << "kvistctl: " << why << "\n";
    return kUsage;
  };
  if (clear->count("--space") > 0 && given.space.empty())
    return wrong("clear: --space is empty; leave it out to clear everything");
  if (clear->parsed()) given.filter.set_digest(given.space);
  ControllerSession nodes_by_name(given, terminal);
  if (nodes->parsed()) return nodes_by_name.Nodes();
  if (query_ip->parsed()) return nodes_by_name.QueryIp();
  if (given.by_controller) {
    const bool any_jobs = jobs->parsed(), any_pins = pins->parsed();
    const bool with_node = (given.job + given.pin).find('/') != std::string::npos;
    if ((cancel_job->parsed() || watch_job->parsed() || remove_pin->parsed()) && !with_node)
      return wrong("a controller's jobs and pins have a node: NODE/NUMBER");
    if (cancel_job->parsed()) return nodes_by_name.CancelJob();
    if (watch_job->parsed()) return nodes_by_name.WatchJob();
    if (any_jobs) return nodes_by_name.ListJobs();
    if (add_pin->parsed()) return nodes_by_name.AddPin();
    if (remove_pin->parsed()) return nodes_by_name.RemovePin();
    if (any_pins) return nodes_by_name.ListPins();
    if (lookup->parsed()) return nodes_by_name.Lookup();
    if (clear->parsed()) return nodes_by_name.Clear();
    if (move->parsed()) return nodes_by_name.Move();
    if (prefetch->parsed()) return nodes_by_name.Prefetch();
    if (compress->parsed()) return nodes_by_name.Compress();
    if (decompress->parsed()) return nodes_by_name.Decompress();
    return wrong("--controller: this is asked of one kvistd: name it by --socket or --address");
  }
  if ((given.job + given.pin).find('/') != std::string::npos)
    return wrong("NODE/NUMBER is a controller's: add --controller");
  if (!given.node.empty() && !move->parsed() && !prefetch->parsed())
    return wrong("--node: one of a controller's nodes: add --controller");
  Session session(given, terminal);
  if (status->parsed()) return session.Status();
  if (ssd->parsed()) return session.Ssd();
  if (sessions->parsed()) return session.Sessions();
  if (reload->parsed()) return session.Reload();
  if (top->parsed()) return Top(given, terminal).Run();
  if (doctor->parsed()) return session.Doctor();
  if (fsck->parsed()) return session.Fsck();
  if (cancel_job->parsed()) return session.CancelJob();
  if (watch_job->parsed()) return session.WatchJob();
  if (lookup->parsed()) return session.Lookup();
  if (add_pin->parsed()) return session.AddPin();
  if (remove_pin->parsed()) return session.RemovePin();
  if (list_pins->parsed() || pins->parsed()) return session.ListPins();
  if (set_quota->parsed()) return session.SetQuota(given.quota);
  if (unset_quota->parsed()) return session.SetQuota(Bytes{});
  if (list_quotas->parsed() || quota->parsed()) return session.ListQuotas();
  if (list_jobs->parsed() || jobs->parsed()) return session.ListJobs();
  if (move->parsed()) return session.Move();
  if (prefetch->parsed()) return session.Prefetch();
  if (compress->parsed()) return session.Recode(/*compress=*/true);
  if (decompress->parsed()) return session.Recode(/*compress=*/false);
  return given.has_prompt() ? session.ClearPrompt() : session.Clear();
}

}  // namespace kvist::ctl
