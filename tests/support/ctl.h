#ifndef KVIST_TESTS_SUPPORT_CTL_H_
#define KVIST_TESTS_SUPPORT_CTL_H_

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/daemon_process.h"

namespace kvist::test {

// What kvistctl says to these arguments, as JSON; requires that it succeeds.
inline nlohmann::json Ctl(const DaemonProcess& daemon, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "-o", "json"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::string out;
  const int status = RunProgram(argv, &out);
  REQUIRE(status == 0);
  return nlohmann::json::parse(out);
}

// Whether it holds within 20 s; for what a daemon or an engine does soon, by itself.
inline bool Eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CTL_H_
