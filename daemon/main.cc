// kvistd: reads its configuration, holds its state directory, starts the daemon, and reloads until a signal ends it. Everything else
// is behind wiring.h.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/config_commands.h"
#include "daemon/config_in_force.h"
#include "daemon/config_keys.h"
#include "daemon/config_rules.h"
#include "daemon/ctl/completion.h"
#include "daemon/ctl/wrap.h"
#include "daemon/ctl/wrong_usage.h"
#include "daemon/logging.h"
#include "daemon/main_loop.h"
#include "daemon/process.h"
#include "daemon/progress_watch.h"
#include "daemon/service_notify.h"
#include "daemon/socket_dir.h"
#include "daemon/state_dir.h"
#include "daemon/thread_limit.h"
#include "daemon/wiring.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr int kThreads = 64;  // twice what it starts with: more come with engines that die, operators, and scrapers

enum ExitCode : int { kStopped = 0, kFailed = 1, kWrongConfig = 2 };

constexpr absl::Duration kApplyTime = absl::Seconds(4);  // with the listener's time less than kvistctl waits

std::string ServingStatus(const Options& options) {
  return absl::StrCat("serving engines on ", options.session.socket, ", operators on ", options.admin.socket);
}

void LogWarnings(const Options& options) {
  for (const std::string& warning : ConfigWarnings(options)) spdlog::warn("configuration: {}", warning);
}

// Reads the configuration again and puts in force what can be, or nothing when that can't be done now; says what came of it to log and
// supervisor.
absl::StatusOr<rpc::ReloadResult> Reload(ConfigInForce* config, Daemon* daemon) {
  NotifyReloading();
  absl::StatusOr<ConfigInForce::Next> next = config->Reread();
  const absl::Status refused =
      next.ok() ? daemon->Apply(next->options, MonotonicNow() + kApplyTime) : absl::Status(next.status());
  if (!refused.ok()) {
    spdlog::error("reload refused, the configuration stays as it was:");
    for (const std::string& line : ErrorLines(refused)) spdlog::error("  {}", line);
    NotifyReady(absl::StrCat(ServingStatus(config->options()), "; reload refused: ", ErrorLines(refused)[0]));
    return refused;
  }
  const ConfigInForce::Changes changes = next->changes;
  config->Take(*std::move(next));
  ChangeLogging(config->options().log);
  LogWarnings(config->options());
  const std::string live = absl::StrJoin(changes.live, ", "), restart = absl::StrJoin(changes.restart, ", ");
  spdlog::info("reloaded; in force now: {}; waiting for a restart: {}", live.empty() ? "nothing new" : live,
               restart.empty() ? "nothing" : restart);
  NotifyReady(absl::StrCat(ServingStatus(config->options()), restart.empty() ? "" : "; waiting for a restart: ", restart));
  return rpc::ReloadResult{changes.live, changes.restart};
}

void LogStart(const Options& options, rpc::NodeControl& node) {
  spdlog::info("serving engines on {}, operators on {}", options.session.socket, options.admin.socket);
  const absl::StatusOr<rpc::NodeStatus> status = node.Status(MonotonicNow() + absl::Seconds(5));
  if (!status.ok()) {
    spdlog::warn("the node doesn't say how it is: {}", status.status().ToString());
    return;
  }
  spdlog::info("pool of {} MiB in {} region(s), slabs of {} KiB, pages of {} KiB, {}", status->pool_capacity / MiB(1),
               status->pool_regions, status->slab / KiB(1), status->pool_page / KiB(1),
               status->pool_locked ? "locked" : "not locked");
}

int Fail(const absl::Status& why) {
  spdlog::error("{}", std::string(why.message()));
  return kFailed;
}

int RunDaemon(ConfigInForce config) {
  const Options options = config.options();
  if (const absl::Status enough = ThreadsLeft(kThreads); !enough.ok()) {  // before logging, which has one
    std::fprintf(stderr, "kvistd: can't start: %s\n", std::string(enough.message()).c_str());
    return kFailed;
  }
  SetUpLogging(options.log);
  LogWarnings(options);
  LeaveNoCore();
  IgnoreBrokenPipes();
  RaiseDescriptorLimit();
  const absl::StatusOr<std::unique_ptr<MainLoop>> loop = MainLoop::Create();
  if (!loop.ok()) return Fail(loop.status());
  umask(0077);  // sockets get their modes explicitly

  absl::StatusOr<StateDir> state_dir = StateDir::Lock(options.daemon.state_dir);
  if (!state_dir.ok()) return Fail(state_dir.status());
  absl::Status made = MakeSocketDir("session.socket", options.session.socket);
  if (made.ok()) made = MakeSocketDir("admin.socket", options.admin.socket);
  if (!made.ok()) {
    state_dir->GiveUp();
    return Fail(made);
  }
  Parts parts;
  parts.keeper = ServiceFileKeeper();
  parts.reload = [&loop = **loop](absl::Time deadline) { return loop.AskReload(deadline); };
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(options, std::move(parts));
  if (!daemon.ok()) {
    state_dir->GiveUp();
    spdlog::error("can't start: {}", std::string(daemon.status().message()));
    return kFailed;
  }
  LogStart(options, (*daemon)->node());
  ProgressWatch reactor([daemon = daemon->get()](std::function<void()> task) { daemon->RunOnReactor(std::move(task)); });
  NotifyReady(ServingStatus(options));
  std::puts("READY");
  std::fflush(stdout);

  const int signal = (*loop)->Run({.reload = [&] { return Reload(&config, daemon->get()); },
                                   .beat =
                                       [&] {
                                         if (reactor.Progressed()) NotifyWatchdog();
                                       },
                                   .beat_every = WatchdogPeriod()});
  NotifyStopping("waiting for copies to end");
  spdlog::info("stopping: {}", signal == SIGINT ? "SIGINT" : "SIGTERM");
  daemon->reset();
  spdlog::info("stopped");
  return kStopped;
}

int Main(int argc, char** argv) {
  ConfigSources sources;
  std::string format = "text";
  CLI::App app("The KV-cache daemon of one node.", "kvistd");
  app.get_formatter()->column_width(ctl::kHelpColumn);
  app.set_version_flag("--version", "kvistd " KVIST_VERSION);
  app.add_option("--config", sources.file, "TOML file; without one, every key has its default")->type_name("FILE");
  app.add_option("--set", sources.overrides, "One key on top of the file, e.g. --set pool.bytes=4GiB; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
  app.failure_message(&ctl::WrongUsage);
  CLI::App& config = *app.add_subcommand("config", "Shows and checks the configuration; starts nothing");
  config.fallthrough();  // --config and --set may also stand behind it
  config.require_subcommand(1);
  config.add_option("-o,--output", format, "How to print: text, or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT");
  const std::pair<const CLI::App*, ConfigCommand> commands[] = {
      {config.add_subcommand("check",
                             "Say whether kvistd would take the configuration on this machine, as this user, or everything "
                             "that is wrong with it"),
       ConfigCommand::kCheck},
      {config.add_subcommand("default", "Print every key with its default and what it is for: a file to start from"),
       ConfigCommand::kDefault},
      {config.add_subcommand("dump", "Print the configuration in effect, defaults filled in"), ConfigCommand::kDump},
      {config.add_subcommand("diff", "Print only what differs from the defaults"), ConfigCommand::kDiff}};
  for (CLI::App* command : config.get_subcommands({})) command->fallthrough();
  bool man = false;
  std::string completion;  // the shell
  app.add_flag("--man", man, "Print the manual page, in roff: kvistd --man | man -l -");
  app.add_option("--completion", completion,
                 "Print what a shell needs to complete kvistd: source <(kvistd --completion bash)")
      ->type_name("SHELL")
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  app.footer(
      "exit status: 0 stopped by a signal, or the configuration is right; 1 can't start; 2 wrong usage or configuration\n"
      "READY on stdout says that engines can connect. The log is on stderr.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    const int status = app.exit(error, help, std::cerr);
    std::cout << ctl::WrapHelp(help.str(), kHelpColumns) << std::flush;
    return status == 0 ? kStopped : kWrongConfig;
  }

  if (man || !completion.empty()) {
    std::cout << (man ? ctl::ManPage(app, 8) : ctl::Completion(app, completion)) << std::flush;
    return kStopped;
  }
  for (const auto& [parsed, command] : commands) {
    if (!parsed->parsed()) continue;
    const ConfigFormat as = format == "json" ? ConfigFormat::kJson : ConfigFormat::kText;
    const bool right = RunConfigCommand(command, sources, as, std::cout, std::cerr);
    std::cout.flush();
    return !right ? kWrongConfig : std::cout.good() ? kStopped : kFailed;
  }
  absl::StatusOr<ConfigInForce> in_force = ConfigInForce::Load(std::move(sources));
  if (!in_force.ok()) {
    for (const std::string& line : ErrorLines(in_force.status())) std::cerr << "kvistd: " << line << "\n";
    return kWrongConfig;
  }
  return RunDaemon(*std::move(in_force));
}

}  // namespace
}  // namespace kvist::daemon

int main(int argc, char** argv) {
  // Debian's Abseil is built with deadlock detection, which shows in the profile of a request.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return kvist::daemon::Main(argc, argv);
}
