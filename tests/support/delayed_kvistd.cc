// A kvistd with a slow tier below its slots (delayed_tier.h), for tests that can't wait for a real one to be slow.
//
// usage: kvistd_delayed READ_DELAY_MS [--set SECTION.KEY=VALUE]...      prints READY; ends by SIGTERM
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "tests/support/delayed_tier.h"
#include "tests/support/kvistd_main.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const absl::Duration delay = absl::Milliseconds(std::atoi(argv[1]));
  kvist::daemon::Parts parts;
  parts.disk_tier = [delay](kvist::session::LowerTier::Ear* ear) {
    return std::make_unique<kvist::test::DelayedTier>(delay, ear);
  };
  // All that there is room for is written at once.
  parts.disk = {.reserve = kvist::GiB(1), .writing = kvist::GiB(1)};
  return kvist::test::RunKvistd("kvistd_delayed", std::span(argv, static_cast<size_t>(argc)).subspan(2), std::move(parts));
}
