#include "tests/support/kvistd_main.h"

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "daemon/config.h"
#include "daemon/logging.h"
#include "daemon/socket_dir.h"

namespace kvist::test {

int RunKvistd(const char* program, std::span<char* const> arguments, daemon::Parts parts) {
  daemon::ConfigSources sources;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    if (i + 1 == arguments.size() || std::string_view(arguments[i]) != "--set") return 2;
    sources.overrides.emplace_back(arguments[i + 1]);
  }
  const absl::StatusOr<daemon::LoadedConfig> config =
      daemon::LoadConfig(sources, {.machine = daemon::ThisMachine(), .fill = daemon::FillDefaults});
  absl::Status status = config.status();
  if (status.ok()) daemon::SetUpLogging(config->options.log);
  if (status.ok()) status = daemon::MakeSocketDir("session.socket", config->options.session.socket);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);  // also of the daemon's threads
  absl::StatusOr<std::unique_ptr<daemon::Daemon>> started;
  if (status.ok()) {
    started = daemon::Daemon::Start(config->options, std::move(parts));
    status = started.status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program, status.ToString().c_str());
    return 1;
  }
  std::puts("READY");
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  return 0;
}

}  // namespace kvist::test
