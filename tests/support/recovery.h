#ifndef KVIST_TESTS_SUPPORT_RECOVERY_H_
#define KVIST_TESTS_SUPPORT_RECOVERY_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/support/daemon_process.h"

namespace kvist::test {

// What its SSD tier says of itself in `kvistctl status`; nothing of a kvistd that doesn't answer.
inline nlohmann::json SsdOf(const DaemonProcess& daemon) {
  std::string out;
  if (RunProgram({BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "-o", "json", "status"}, &out) != 0) return {};
  return nlohmann::json::parse(out)["ssd"];
}

// Whether the SSD tier of a kvistd that was started has found all that it holds and measured its disks, or has within 20 s: from then on what isn't found isn't there.
inline bool HasRecovered(const DaemonProcess& daemon) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    const nlohmann::json ssd = SsdOf(daemon);
    if (ssd.is_object() && (ssd["state"] == "on" || ssd["state"] == "read-only") && ssd["recovering"] == false) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_RECOVERY_H_
