#ifndef KVIST_TESTS_SUPPORT_KILLED_H_
#define KVIST_TESTS_SUPPORT_KILLED_H_

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"

// Of engines that are killed: their ends, and what a kvistd may have left of them.
namespace kvist::test {

// Kills it, and returns how it ended, when it has. It is reaped with its object: that was seen to take its parent up to 2.6 s, in the kernel
// (shrink_dcache_parent, for /proc), when kvistd had long reclaimed everything.
inline int KillUnreaped(const ChildProcess& child) {
  child.Signal(SIGKILL);
  siginfo_t end{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid()), &end, WEXITED | WNOWAIT) == 0);
  return end.si_code == CLD_EXITED ? end.si_status : -end.si_status;
}

// Mappings of engines' memory and of sessions in kvistd.
inline size_t Mappings(const DaemonProcess& daemon) {
  std::ifstream maps("/proc/" + std::to_string(daemon.pid()) + "/maps");
  size_t mappings = 0;
  for (std::string line; std::getline(maps, line);)
    mappings += line.find("memfd:fake-engine") != std::string::npos || line.find("memfd:kvist-session") != std::string::npos;
  return mappings;
}

// Descriptors that kvistd keeps: connections of those who asked it something are closed soon after their ends.
inline size_t FdsAtRest(const DaemonProcess& daemon) {
  size_t least = SIZE_MAX;
  for (int look = 0; look < 40; ++look, std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    least = std::min(least, daemon.OpenFds());
  return least;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_KILLED_H_
