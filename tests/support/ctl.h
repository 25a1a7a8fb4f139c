#ifndef KVIST_TESTS_SUPPORT_CTL_H_
#define KVIST_TESTS_SUPPORT_CTL_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/daemon_process.h"

namespace kvist::test {

// kvistctl's exit status, and all that it says, on stdout and stderr.
inline std::pair<int, std::string> CtlSays(const DaemonProcess& daemon, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{
      "/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "-o", "json"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::string said;
  const int status = RunProgram(argv, &said);
  return {status, said};
}

// What kvistctl answers to these arguments, as JSON; requires that it succeeds, however long a busy machine takes.
inline nlohmann::json Ctl(const DaemonProcess& daemon, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "-o", "json"};
  if (std::find(arguments.begin(), arguments.end(), "--timeout") == arguments.end())
    argv.insert(argv.end(), {"--timeout", "60s"});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::string out;
  const int status = RunProgram(argv, &out);
  REQUIRE(status == 0);
  return nlohmann::json::parse(out);
}

inline nlohmann::json StatusOf(const DaemonProcess& daemon) { return Ctl(daemon, {"status"}); }

// Whether that is the status of a kvistd that has nothing to do and owes nobody anything: no lease, no copy, no half store.
inline bool AtRest(const nlohmann::json& status) {
  return status["leases"] == 0 && status["ops"] == 0 && status["filling"] == 0;
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

// Whether the daemon has closed what it had opened since it held `fds` descriptors, or does so soon.
inline bool FdsFallTo(const DaemonProcess& daemon, size_t fds) {
  return Eventually([&] { return daemon.OpenFds() <= fds; });
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CTL_H_
