#ifndef KVIST_TESTS_SUPPORT_GROWTH_H_
#define KVIST_TESTS_SUPPORT_GROWTH_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/support/sanitizers.h"

namespace kvist::test {

// Row 30's figure: by how much a kvistd's resident memory grows for each bad frame. `send` sends them all once and returns how many that were. The
// first round warms up whatever keeps memory for the next time; of the others the one counts in which it grew least: a leak grows in each, and what
// an allocator keeps doesn't. Prints it; fails when that round has left more than some pages and two bytes a frame
// (some are right, and leave what they ask for: a lease).
inline void CheckGrowth(const DaemonProcess& daemon, const std::string& frames, const std::function<uint32_t()>& send) {
  constexpr double kNoise = 16 << 10;  // bytes: four pages
  constexpr int kRounds = 5;
  uint32_t sent = send();
  const auto warm = static_cast<double>(daemon.ResidentBytes());
  double before = warm, least = 1e18;
  for (int round = 0; round < (kSanitized ? 1 : kRounds); ++round) {
    sent = send();
    const auto now = static_cast<double>(daemon.ResidentBytes());
    least = std::min(least, now - before);
    before = now;
  }
  std::printf("row 30: %u %s, once warm: RSS growth per bad frame %.1f bytes (%.0f KiB in all rounds)\n", sent,
              frames.c_str(), std::max(least, 0.0) / sent, (before - warm) / 1024);
  if (!kSanitized) CHECK(least <= kNoise + 2.0 * sent);
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_GROWTH_H_
