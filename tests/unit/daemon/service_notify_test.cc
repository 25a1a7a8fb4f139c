#include "daemon/service_notify.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "tests/support/notify_socket.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

TEST_CASE("What a service manager hears of kvistd") {
  const test::TempDir dir;
  const test::NotifySocket manager(dir / "notify");
  NotifyReady("serving");
  CHECK(manager.Receive(5000) == "READY=1\nSTATUS=serving");
  NotifyStopping("waiting");
  CHECK(manager.Receive(5000) == "STOPPING=1\nSTATUS=waiting");
  NotifyWatchdog();
  CHECK(manager.Receive(5000) == "WATCHDOG=1");

  const int64_t before = MonotonicNanos() / 1000;
  NotifyReloading();
  const std::string reloading = manager.Receive(5000);
  const std::string begin = "RELOADING=1\nMONOTONIC_USEC=";
  CHECK(reloading.substr(0, begin.size()) == begin);
  int64_t at = 0;
  CHECK(absl::SimpleAtoi(reloading.substr(begin.size()), &at));
  CHECK(at >= before);
  CHECK(at <= MonotonicNanos() / 1000);
}

TEST_CASE("A status can't say anything else to the service manager") {
  const test::TempDir dir;
  const test::NotifySocket manager(dir / "notify");
  NotifyReady("a\nMAINPID=1\x7f");
  CHECK(manager.Receive(5000) == "READY=1\nSTATUS=a MAINPID=1 ");
}

TEST_CASE("Without a service manager nothing is sent, and nobody asks for pings") {
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  NotifyReady("serving");
  NotifyWatchdog();
  CHECK(WatchdogPeriod() == absl::InfiniteDuration());
  setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
  NotifyReady("serving");
  unsetenv("NOTIFY_SOCKET");
}

TEST_CASE("WatchdogPeriod is half of what the service manager waits, when it watches this process") {
  setenv("WATCHDOG_USEC", "30000000", 1);
  CHECK(WatchdogPeriod() == absl::Seconds(15));
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  CHECK(WatchdogPeriod() == absl::Seconds(15));
  setenv("WATCHDOG_PID", absl::StrCat(getppid()).c_str(), 1);
  CHECK(WatchdogPeriod() == absl::InfiniteDuration());
  unsetenv("WATCHDOG_PID");
  unsetenv("WATCHDOG_USEC");
}

}  // namespace
}  // namespace kvist::daemon
