// A kvistd that ends itself with SIGKILL before a step of its SSD tier (crash_plan.h), and writes down what the tier gives up.
//
// usage: KVIST_CRASH_PLAN=FILE KVIST_RECLAIMED=FILE kvistd_crashing [--set SECTION.KEY=VALUE]...      prints READY; ends by SIGTERM
//   RECLAIMED gets the 32 bytes of each chunk's key, before its places are free
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "daemon/config.h"
#include "daemon/logging.h"
#include "daemon/socket_dir.h"
#include "daemon/wiring.h"
#include "tests/support/crash_plan.h"

namespace {

int Run(int argc, char** argv) {
  kvist::daemon::ConfigSources sources;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) != "--set") return 2;
    sources.overrides.emplace_back(argv[i + 1]);
  }
  const char* plan_file = std::getenv("KVIST_CRASH_PLAN");
  const char* reclaimed_file = std::getenv("KVIST_RECLAIMED");
  if (plan_file == nullptr || reclaimed_file == nullptr) return 2;
  kvist::test::CrashPlan* const plan = kvist::test::CrashPlan::In(plan_file);
  const int reclaimed = ::open(reclaimed_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (reclaimed < 0) return 2;

  absl::StatusOr<kvist::daemon::Options> options = kvist::daemon::LoadConfig(sources);
  absl::Status status = options.status();
  if (status.ok()) status = kvist::daemon::FillDefaults(&*options);
  if (status.ok()) kvist::daemon::SetUpLogging(options->log);
  if (status.ok()) status = kvist::daemon::MakeSocketDir(options->session.socket);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);  // also of the daemon's threads
  kvist::daemon::Parts parts;
  parts.ssd_step = [plan](std::string_view step) {
    if (plan->left.load(std::memory_order_acquire) == 0 || !step.starts_with(plan->step)) return;
    if (plan->left.fetch_sub(1) != 1) return;
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  };
  parts.ssd_freed = [reclaimed](const kvist::core::PlacesFreed& freed) {
    for (const kvist::core::PlacesFreed::Chunk& chunk : freed.chunks) {
      if (chunk.replaced) continue;
      if (::write(reclaimed, chunk.key.bytes.data(), chunk.key.bytes.size()) != static_cast<ssize_t>(chunk.key.bytes.size()))
        std::abort();
    }
  };
  absl::StatusOr<std::unique_ptr<kvist::daemon::Daemon>> daemon;
  if (status.ok()) {
    daemon = kvist::daemon::Daemon::Start(*options, std::move(parts));
    status = daemon.status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "kvistd_crashing: %s\n", status.ToString().c_str());
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
