#ifndef KVIST_TESTS_SUPPORT_GROWTH_H_
#define KVIST_TESTS_SUPPORT_GROWTH_H_

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/support/sanitizers.h"

namespace kvist::test {

// Row 30's figure: by how much a kvistd's resident memory grows for each bad frame. `send` sends them all once and returns how many that were; what
// comes first warms up whatever keeps memory for the next time. Prints it; fails when all of them together are kept more than `kNoise`.
inline void CheckGrowth(const DaemonProcess& daemon, const std::string& frames, const std::function<uint32_t()>& send) {
  constexpr double kNoise = 128 << 10;  // bytes: pages of allocators, in which frames of some rounds have lain
  constexpr int kRounds = 3;
  send();
  const auto before = static_cast<double>(daemon.ResidentBytes());
  uint32_t sent = 0;
  for (int round = 0; round < kRounds; ++round) sent += send();
  const double growth = static_cast<double>(daemon.ResidentBytes()) - before;
  std::printf("row 30: %u %s after as many to warm up: RSS growth per bad frame %.1f bytes (%.0f KiB in all)\n", sent,
              frames.c_str(), growth / sent, growth / 1024);
  if (!kSanitized) CHECK(growth <= kNoise);
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_GROWTH_H_
