// kvistd: reads its configuration, holds its state directory, starts the daemon and waits for a signal. Everything else is behind
// wiring.h.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/config.h"
#include "daemon/ctl/completion.h"
#include "daemon/logging.h"
#include "daemon/socket_dir.h"
#include "daemon/state_dir.h"
#include "daemon/wiring.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

enum ExitCode : int { kStopped = 0, kFailed = 1, kWrongConfig = 2 };

struct Arguments {
  ConfigSources sources;
  bool check = false;
  bool man = false;
};

absl::StatusOr<Options> FindOptions(const ConfigSources& sources) {
  KVIST_ASSIGN_OR_RETURN(Options options, LoadConfig(sources));
  KVIST_RETURN_IF_ERROR(FillDefaults(&options));
  KVIST_RETURN_IF_ERROR(options.Validate());
  return options;
}

// SIGINT and SIGTERM, in all threads that are started from here on.
sigset_t BlockStopSignals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return stop;
}

void IgnoreSignals() {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore,
            nullptr);  // a reader of our output, or a peer on a socket, that is gone is an error there, not an end
  sigaction(SIGHUP, &ignore, nullptr);  // there is nothing to reload yet, and the end of a terminal is no reason to stop
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

int RunDaemon(const Options& options) {
  SetUpLogging(options.log);
  IgnoreSignals();
  const sigset_t stop = BlockStopSignals();
  umask(0077);  // sockets get their modes explicitly

  const absl::StatusOr<StateDir> state_dir = StateDir::Lock(options.daemon.state_dir);
  if (!state_dir.ok()) {
    spdlog::error("{}", std::string(state_dir.status().message()));
    return kFailed;
  }
  for (const std::string* socket : {&options.session.socket, &options.admin.socket}) {
    if (const absl::Status made = MakeSocketDir(*socket); !made.ok()) {
      spdlog::error("{}", std::string(made.message()));
      return kFailed;
    }
  }
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(options);
  if (!daemon.ok()) {
    spdlog::error("can't start: {}", std::string(daemon.status().message()));
    return kFailed;
  }
  LogStart(options, (*daemon)->node());
  std::puts("READY");
  std::fflush(stdout);

  int signal = 0;
  sigwait(&stop, &signal);
  spdlog::info("stopping: {}", signal == SIGINT ? "SIGINT" : "SIGTERM");
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // a second signal ends it at once
  daemon->reset();
  spdlog::info("stopped");
  return kStopped;
}

int Main(int argc, char** argv) {
  Arguments given;
  CLI::App app("The KV-cache daemon of one node.", "kvistd");
  app.set_version_flag("--version", "kvistd " KVIST_VERSION);
  app.add_option("--config", given.sources.file, "TOML file; without one, every key has its default")->type_name("FILE");
  app.add_option("--set", given.sources.overrides, "One key on top of the file, e.g. --set pool.bytes=4GiB; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--check", given.check, "Only check the configuration: print the one in effect, or what is wrong with it");
  app.add_flag("--man", given.man, "Print the manual page, in roff: kvistd --man | man -l -");
  app.footer(
      "exit status: 0 stopped by a signal, or the configuration is right; 1 can't start; 2 wrong usage or configuration\n"
      "READY on stdout says that engines can connect. The log is on stderr.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) { return app.exit(error) == 0 ? kStopped : kWrongConfig; }

  if (given.man) {
    std::cout << ctl::ManPage(app, 8) << std::flush;
    return kStopped;
  }
  const absl::StatusOr<Options> options = FindOptions(given.sources);
  if (!options.ok()) {
    std::cerr << "kvistd: " << options.status().message() << "\n";
    return kWrongConfig;
  }
  if (given.check) {
    std::cout << PrintConfig(*options) << std::flush;
    return kStopped;
  }
  return RunDaemon(*options);
}

}  // namespace
}  // namespace kvist::daemon

int main(int argc, char** argv) {
  // Debian's Abseil is built with deadlock detection, which shows in the profile of a request.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return kvist::daemon::Main(argc, argv);
}
