#include "daemon/ctl/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/ctl/argument_checks.h"
#include "daemon/ctl/arguments.h"
#include "daemon/ctl/channel.h"
#include "daemon/ctl/completion.h"
#include "daemon/ctl/controller_commands.h"
#include "daemon/ctl/node_commands.h"
#include "daemon/ctl/wrap.h"
#include "daemon/ctl/wrong_usage.h"

namespace kvist::ctl {
namespace {

constexpr char kExitCodes[] =
    "exit status: 0 done, or of a question to several nodes: one has answered; 1 the daemon refused, some node hasn't made "
    "a "
    "change, doctor or fsck found what fails, or a job was cancelled; 2 wrong usage, or a clear that was not confirmed; 3 "
    "no "
    "daemon, no answer in time (of several nodes: from none), a job that goes on, or a tier that fsck can't have";

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

// What may be said on the command line, and who does it.
class CommandLine {
 public:
  explicit CommandLine(const Terminal& terminal);
  ExitCode Run(const std::vector<std::string>& arguments);

 private:
  // A command, which one kvistd does, or by way of a controller its nodes. A null one doesn't do it.
  struct Command {
    const CLI::App* said;
    ExitCode (NodeSession::*by_node)();
    ExitCode (ControllerSession::*by_controller)() = nullptr;
  };

  void AddTargets();
  void AddQuestions();
  void AddClear();
  void AddMoves();
  void AddEncodings();
  void AddJobs();
  void AddQuotas();
  void AddPins();
  // Those that speak to nobody, and reload.
  void AddOthers();
  // The command that was said; of `jobs` and `jobs cancel` the inner one.
  const Command& Said() const;
  ExitCode Do(const Command& command);
  ExitCode Wrong(absl::string_view why) const;

  const Terminal& terminal_;
  Arguments given_;
  CLI::App app_{"Shows and steers the kvistd of this machine.", "kvistctl"};
  std::vector<Command> commands_;  // an inner one behind its outer one
  const CLI::App *clear_ = nullptr, *move_ = nullptr, *prefetch_ = nullptr, *completion_ = nullptr, *man_ = nullptr;
};

CommandLine::CommandLine(const Terminal& terminal) : terminal_(terminal) {
  given_.target = {.address = {.socket = DefaultSocket()}, .tls = DefaultTlsFiles()};
  app_.get_formatter()->column_width(kHelpColumn);
  app_.footer(kExitCodes);
  app_.set_version_flag("--version", "kvistctl " KVIST_VERSION);
  app_.require_subcommand(1);
  app_.failure_message(&WrongUsage);
  app_.fallthrough();  // the options below may also stand behind the command
  AddTargets();
  AddQuestions();
  AddClear();
  AddMoves();
  AddEncodings();
  AddJobs();
  AddQuotas();
  AddPins();
  AddOthers();
}

void CommandLine::AddTargets() {
  CLI::Option* socket = app_.add_option("--socket", given_.target.address.socket,
                                        "Admin socket of the kvistd (default: $KVIST_ADMIN_SOCKET, else your own daemon's, "
                                        "else the system's)")
                            ->type_name("PATH")
                            ->check([](const std::string& path) { return path.empty() ? "empty; allowed: a path" : ""; });
  CLI::Option* address =
      app_.add_option(
              "--address",
              "Instead: unix:PATH, or tls:HOST:PORT, the admin.listen of a kvistd elsewhere; then the next three, too")
          ->type_name("ADDRESS")
          ->excludes(socket)
          ->check([this](const std::string& text) { return CheckAddress(text, &given_.target.address); });
  app_.add_option(
          "--controller",
          "Ask the kvist-controller there, unix:PATH or tls:HOST:PORT, for all its nodes: nodes, query-ip, lookup, clear, "
          "move, prefetch, compress, decompress, jobs, pins")
      ->type_name("ADDRESS")
      ->excludes(socket, address)
      ->check([this](const std::string& text) {
        given_.by_controller = true;
        given_.target.program = kControllerProgram;
        return CheckAddress(text, &given_.target.address);
      });
  app_.add_option("--node", given_.node, "Of a controller's nodes only this one, by its name")->type_name("NAME");
  app_.add_option("--tls-certificate", given_.target.tls.certificate,
                  "By TLS: file with your certificate, PEM (default: $KVIST_TLS_CERTIFICATE)")
      ->type_name("FILE");
  app_.add_option("--tls-key", given_.target.tls.key, "By TLS: file with its key (default: $KVIST_TLS_KEY)")
      ->type_name("FILE");
  app_.add_option("--tls-ca", given_.target.tls.ca,
                  "By TLS: file with the certificates of who signs kvistds' (default: $KVIST_TLS_CA)")
      ->type_name("FILE");
  app_.add_option("-o,--output", given_.output, "How to print: table, or json with the field names of proto/node.proto")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORMAT");
  app_.add_option("--timeout", "How long to wait for an answer (default: 5s), or for a job to end (60s)")
      ->type_name("DURATION")
      ->check([this](const std::string& text) { return CheckTimeout(text, &given_.timeout); });
}

void CommandLine::AddQuestions() {
  const CLI::App* status = app_.add_subcommand("status", "What the daemon holds, and how well it serves");
  const CLI::App* ssd =
      app_.add_subcommand("ssd", "The tier on disk: its devices, what they hold, do and have found wrong, and its catalog");
  const CLI::App* nodes =
      app_.add_subcommand("nodes", "The nodes of a kvist-controller (--controller), and how they are; of a kvistd: itself");
  const CLI::App* query_ip =
      app_.add_subcommand("query-ip", "Where the nodes of a controller are, and the IP addresses of their machines");
  const CLI::App* sessions = app_.add_subcommand("sessions", "The engine processes that are connected");
  CLI::App* top =
      app_.add_subcommand("top", "How busy the daemon is, live: pool, hit rate, throughput, latencies, who does what");
  top->add_flag("--once", given_.once, "Look once, for one interval, and end; with -o json: one object, else one a line");
  top->add_option("--interval", "Time between two looks (default: 1s)")
      ->type_name("DURATION")
      ->check([this](const std::string& text) { return CheckInterval(text, &given_.interval); });
  CLI::App* doctor =
      app_.add_subcommand("doctor", "What keeps kvistd from serving well on this machine, and the commands that mend it");
  doctor->add_option("--state-dir", given_.state_dir, "State directory of the kvistd (default: this user's)")
      ->type_name("PATH");
  CLI::App* fsck = app_.add_subcommand(
      "fsck", "Read the tier on disk of a kvistd that doesn't run, all of it, and say what in it is damaged");
  fsck->add_flag("--repair", given_.repair, "Mend its catalog, as the user whose it is: it then leads to good records only");
  fsck->add_option("--path", given_.ssd_path, "Its directories, as ssd.path has them (default: ssd in the state directory)")
      ->type_name("PATH[:PATH..]");
  fsck->add_option("--state-dir", given_.state_dir, "State directory of the kvistd (default: this user's)")
      ->type_name("PATH");
  CLI::App* lookup = app_.add_subcommand("lookup", "How much of a prompt is there, and where; nothing is used or moved");
  AddPromptOptions(lookup, &given_);
  commands_.insert(commands_.end(), {
                                        {status, &NodeSession::Status},
                                        {ssd, &NodeSession::Ssd},
                                        {nodes, nullptr, &ControllerSession::Nodes},
                                        {query_ip, nullptr, &ControllerSession::QueryIp},
                                        {sessions, &NodeSession::Sessions},
                                        {top, &NodeSession::Top},
                                        {doctor, &NodeSession::Doctor},
                                        {fsck, &NodeSession::Fsck},
                                        {lookup, &NodeSession::Lookup, &ControllerSession::Lookup},
                                    });
}

void CommandLine::AddClear() {
  CLI::App* clear = app_.add_subcommand(
      "clear", "Forget chunks, of a prompt or all: no lookup finds them any more, and their memory is free");
  clear->add_option("--space", given_.space, "Only this space: its digest as in `kvistctl status`, or the beginning of it")
      ->type_name("DIGEST");
  clear
      ->add_option("--tier", given_.tier,
                   "Only what this tier has: dram, ssd or remote:NAME (of a store that nodes share: for all of them)")
      ->type_name("TIER");
  clear->add_flag("--yes", given_.yes, "Don't ask");
  AddRequestOption(clear, &given_);
  AddPromptOptions(clear, &given_, PromptIs::kOptional);
  commands_.push_back({clear, &NodeSession::Clear, &ControllerSession::Clear});
  clear_ = clear;
}

void CommandLine::AddMoves() {
  CLI::App* move = app_.add_subcommand("move", "Have what is there of a prompt in another tier; what is in use stays");
  CLI::App* prefetch =
      app_.add_subcommand("prefetch", "Have what is there of a prompt read into DRAM before it is asked for");
  for (CLI::App* one : {move, prefetch}) {
    AddPromptOptions(one, &given_);
    CLI::Option* from =
        one->add_option("--from", given_.from, "The tier where it is: dram, ssd or remote:NAME")->type_name("TIER");
    if (one == move) {
      from->required();
      one->add_option("--to", given_.to, "The tier where it is to be: dram, ssd or remote:NAME")
          ->required()
          ->type_name("TIER");
      one->add_flag("--keep-source", given_.keep_source, "Leave it where it is, too");
    }
    one->add_flag("--dry-run", given_.dry_run, "Say what is there of it, and do nothing");
    AddRequestOption(one, &given_);
  }
  commands_.push_back({move, &NodeSession::Move, &ControllerSession::Move});
  commands_.push_back({prefetch, &NodeSession::Prefetch, &ControllerSession::Prefetch});
  move_ = move;
  prefetch_ = prefetch;
}

void CommandLine::AddEncodings() {
  CLI::App* compress = app_.add_subcommand("compress", "Encode what a tier has of a prompt in fewer bytes, where it lies");
  CLI::App* decompress = app_.add_subcommand("decompress", "Have what a tier has of a prompt lie there as engines store it");
  for (CLI::App* one : {compress, decompress}) {
    AddPromptOptions(one, &given_);
    one->add_option("--tier", given_.tier, "The tier where it lies, as in `kvistctl status`: ssd or remote:NAME")
        ->required()
        ->type_name("TIER");
    if (one == compress) {
      one->add_option("--method", given_.method,
                      "lossless, or with loss, which engines then load: int8, int4, fp8, strongest")
          ->required()
          ->type_name("METHOD");
    }
    one->add_flag("--dry-run", given_.dry_run, "Say what is there of it, and do nothing");
    AddRequestOption(one, &given_);
  }
  commands_.push_back({compress, &NodeSession::Compress, &ControllerSession::Compress});
  commands_.push_back({decompress, &NodeSession::Decompress, &ControllerSession::Decompress});
}

void CommandLine::AddJobs() {
  CLI::App* jobs =
      app_.add_subcommand("jobs", "The long operations: those that run, resumed after a restart, and those that ended last");
  jobs->require_subcommand(0, 1);
  const CLI::App* list_jobs = jobs->add_subcommand("list", "List them; so does `jobs` alone");
  CLI::App* cancel_job =
      jobs->add_subcommand("cancel", "Stop a job where it is: what a clear has not freed stays hidden, and goes later");
  CLI::App* watch_job =
      jobs->add_subcommand("watch", "Show how far a job is until it has ended; with -o json: an object a line");
  for (CLI::App* one : {cancel_job, watch_job}) {
    one->add_option("id", given_.job, "Which, as in `jobs list`")
        ->required()
        ->type_name("ID")
        ->check([](const std::string& text) { return CheckId(text, "job"); });
  }
  commands_.insert(commands_.end(), {
                                        {jobs, &NodeSession::ListJobs, &ControllerSession::ListJobs},
                                        {list_jobs, &NodeSession::ListJobs, &ControllerSession::ListJobs},
                                        {cancel_job, &NodeSession::CancelJob, &ControllerSession::CancelJob},
                                        {watch_job, &NodeSession::WatchJob, &ControllerSession::WatchJob},
                                    });
}

void CommandLine::AddQuotas() {
  CLI::App* quota = app_.add_subcommand("quota", "How much of the pool each tenant has, and may have");
  quota->require_subcommand(0, 1);
  const CLI::App* list_quotas =
      quota->add_subcommand("list", "List tenants, their quotas and evictions; so does `quota` alone");
  CLI::App* set_quota = quota->add_subcommand(
      "set", "Give a tenant a quota, at once; a reload or restart brings back what [quotas] of the configuration says");
  CLI::App* unset_quota = quota->add_subcommand("unset", "End a tenant's quota, until a reload or restart as above");
  for (CLI::App* one : {set_quota, unset_quota}) {
    one->add_option("tenant", given_.tenant, "Which: a name of [tenants], or uid:N")->required()->type_name("TENANT");
  }
  set_quota->add_option("bytes", "How much, such as 8GiB")
      ->required()
      ->type_name("BYTES")
      ->check([this](const std::string& text) { return CheckQuota(text, &given_.quota); });
  commands_.insert(commands_.end(), {
                                        {quota, &NodeSession::ListQuotas},
                                        {list_quotas, &NodeSession::ListQuotas},
                                        {set_quota, &NodeSession::SetQuota},
                                        {unset_quota, &NodeSession::UnsetQuota},
                                    });
}

void CommandLine::AddPins() {
  CLI::App* pins = app_.add_subcommand("pins", "Prompts that engines or operators have pinned");
  pins->require_subcommand(0, 1);
  const CLI::App* list_pins = pins->add_subcommand("list", "List them and their owners; so does `pins` alone");
  CLI::App* add_pin = pins->add_subcommand(
      "add",
      "Keep what is there of a prompt from eviction; again by the same owner: the same pin, which lasts as said last");
  AddPromptOptions(add_pin, &given_);
  add_pin->add_option("--owner", given_.owner, "Who wants it (default: operator)")->type_name("NAME");
  add_pin->add_option("--for", "How long it lasts (default: until it is removed)")
      ->type_name("DURATION")
      ->check([this](const std::string& text) { return CheckLasts(text, &given_.lasts); });
  CLI::App* remove_pin =
      pins->add_subcommand("remove", "End a pin, however often it was pinned: its chunks may go when room is needed");
  remove_pin->add_option("pin", given_.pin, "Which, as in `pins`")
      ->required()
      ->type_name("PIN")
      ->check([](const std::string& text) { return CheckId(text, "pin"); });
  commands_.insert(commands_.end(), {
                                        {pins, &NodeSession::ListPins, &ControllerSession::ListPins},
                                        {list_pins, &NodeSession::ListPins, &ControllerSession::ListPins},
                                        {add_pin, &NodeSession::AddPin, &ControllerSession::AddPin},
                                        {remove_pin, &NodeSession::RemovePin, &ControllerSession::RemovePin},
                                    });
}

void CommandLine::AddOthers() {
  const CLI::App* reload = app_.add_subcommand(
      "reload", "Read the configuration again: all of it is put in force that needs no restart, or nothing if it is wrong");
  CLI::App* completion =
      app_.add_subcommand("completion", "Print what a shell needs to complete kvistctl: source <(kvistctl completion bash)");
  completion->add_option("shell", given_.shell, "Which shell")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  const CLI::App* man = app_.add_subcommand("man", "Print the manual page, in roff: kvistctl man | man -l -");
  commands_.push_back({reload, &NodeSession::Reload});
  completion_ = completion;
  man_ = man;
}

ExitCode CommandLine::Run(const std::vector<std::string>& arguments) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app_.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    const bool asked = app_.exit(error, help, terminal_.err) == 0;
    const std::optional<Terminal::Size> size = terminal_.size ? terminal_.size() : std::nullopt;
    terminal_.out << WrapHelp(help.str(), size.value_or(Terminal::Size()).columns);
    return asked ? kOk : kUsage;
  }
  if (completion_->parsed() || man_->parsed()) {
    terminal_.out << (man_->parsed() ? ManPage(app_, 1) : Completion(app_, given_.shell));
    return kOk;
  }
  return Do(Said());
}

const CommandLine::Command& CommandLine::Said() const {
  return *std::find_if(commands_.rbegin(), commands_.rend(), [](const Command& command) { return command.said->parsed(); });
}

ExitCode CommandLine::Do(const Command& command) {
  if (clear_->count("--space") > 0 && given_.space.empty())
    return Wrong("clear: --space is empty; leave it out to clear everything");
  if (clear_->parsed()) given_.filter.set_digest(given_.space);
  const std::string id = given_.job + given_.pin;  // one of them, if any
  const bool of_node = id.find('/') != std::string::npos;
  if (given_.by_controller || command.by_node == nullptr) {
    if (command.by_controller == nullptr)
      return Wrong("--controller: this is asked of one kvistd: name it by --socket or --address");
    if (!id.empty() && !of_node) return Wrong("a controller's jobs and pins have a node: NODE/NUMBER");
    return (ControllerSession(given_, terminal_).*command.by_controller)();
  }
  if (of_node) return Wrong("NODE/NUMBER is a controller's: add --controller");
  if (!given_.node.empty() && !move_->parsed() && !prefetch_->parsed())
    return Wrong("--node: one of a controller's nodes: add --controller");
  return (NodeSession(given_, terminal_).*command.by_node)();
}

ExitCode CommandLine::Wrong(absl::string_view why) const {
  terminal_.err << "kvistctl: " << why << "\n";
  return kUsage;
}

}  // namespace

ExitCode Run(const std::vector<std::string>& arguments, const Terminal& terminal) {
  return CommandLine(terminal).Run(arguments);
}

}  // namespace kvist::ctl
