// A kvistd with a slow tier below its slots (delayed_tier.h), for tests that can't wait for a real one to be slow.
//
// usage: kvistd_delayed READ_DELAY_MS [--set SECTION.KEY=VALUE]...      prints READY; ends by SIGTERM
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "daemon/config.h"
#include "daemon/socket_dir.h"
#include "daemon/wiring.h"
#include "tests/support/delayed_tier.h"

namespace {

int Run(int argc, char** argv) {
  kvist::daemon::ConfigSources sources;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) != "--set") return 2;
    sources.overrides.emplace_back(argv[i + 1]);
  }
  if (argc < 2) return 2;
  const absl::Duration delay = absl::Milliseconds(std::atoi(argv[1]));
  absl::StatusOr<kvist::daemon::Options> options = kvist::daemon::LoadConfig(sources);
  absl::Status status = options.status();
  if (status.ok()) status = kvist::daemon::FillDefaults(&*options);
  if (status.ok()) status = kvist::daemon::MakeSocketDir(options->session.socket);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);  // also of the daemon's threads
  kvist::daemon::Parts parts;
  parts.disk_tier = [delay](kvist::session::DiskTier::Ear* ear) {
    return std::make_unique<kvist::test::DelayedTier>(delay, ear);
  };
  // All that there is room for is written at once.
  parts.disk = {.reserve = kvist::GiB(1), .writing = kvist::GiB(1)};
  absl::StatusOr<std::unique_ptr<kvist::daemon::Daemon>> daemon;
  if (status.ok()) {
    daemon = kvist::daemon::Daemon::Start(*options, std::move(parts));
    status = daemon.status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "kvistd_delayed: %s\n", status.ToString().c_str());
    return 1;
  }
  std::puts("READY");
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run(argc, argv); }
