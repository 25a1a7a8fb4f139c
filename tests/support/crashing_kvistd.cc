// A kvistd that ends itself with SIGKILL before a step of its SSD tier, or goes no further (crash_plan.h), and writes down what the tier gives up.
//
// usage: KVIST_CRASH_PLAN=FILE KVIST_RECLAIMED=FILE kvistd_crashing [--set SECTION.KEY=VALUE]...      prints READY; ends by SIGTERM
//   RECLAIMED gets the 32 bytes of each chunk's key, before its places are free
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "tests/support/crash_plan.h"
#include "tests/support/kvistd_main.h"
#include "tests/support/shared_file.h"

int main(int argc, char** argv) {
  const char* plan_file = std::getenv("KVIST_CRASH_PLAN");
  const char* reclaimed_file = std::getenv("KVIST_RECLAIMED");
  if (plan_file == nullptr || reclaimed_file == nullptr) return 2;
  auto* const plan = kvist::test::SharedFile<kvist::test::CrashPlan>(plan_file);
  const int reclaimed = ::open(reclaimed_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (reclaimed < 0) return 2;

  kvist::daemon::Parts parts;
  parts.ssd_step = [plan](std::string_view step) {
    if (plan->left.load(std::memory_order_acquire) == 0 || !step.starts_with(plan->step)) return;
    if (plan->left.fetch_sub(1) != 1) return;
    if (plan->stands.load() == 0) ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  };
  parts.ssd_freed = [reclaimed](const kvist::core::PlacesFreed& freed) {
    for (const kvist::core::PlacesFreed::Chunk& chunk : freed.chunks) {
      if (chunk.replaced) continue;
      if (::write(reclaimed, chunk.key.bytes.data(), chunk.key.bytes.size()) != static_cast<ssize_t>(chunk.key.bytes.size()))
        std::abort();
    }
  };
  return kvist::test::RunKvistd("kvistd_crashing", std::span(argv, static_cast<size_t>(argc)).subspan(1), std::move(parts));
}
