#include "daemon/service_notify.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "tests/support/child_process.h"
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

TEST_CASE("Files are kept with the service manager, by name, and handed over once") {
  const test::TempDir dir;
  {
    const test::NotifySocket manager(dir / "notify");
    const std::optional<FileKeeper> keeper = ServiceFileKeeper();
    REQUIRE(keeper.has_value());
    CHECK(keeper->kept.empty());
    const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
    keeper->keep("kvist-a", file.get());
    CHECK(manager.Receive(5000) == "FDSTORE=1\nFDPOLL=0\nFDNAME=kvist-a");
    keeper->drop("kvist-a");
    CHECK(manager.Receive(5000) == "FDSTOREREMOVE=1\nFDNAME=kvist-a");
  }
  CHECK(!ServiceFileKeeper().has_value());
  CHECK(KeptBytes("kvist-") == Bytes{});

  // A process of its own, for the descriptors start at 3.
  CHECK(test::InChild([] {
          const UniqueFd large(::memfd_create("large", 0)), small(::memfd_create("small", 0));
          if (::ftruncate(large.get(), 8192) != 0 || ::ftruncate(small.get(), 4096) != 0) return 2;
          const int a = ::fcntl(large.get(), F_DUPFD, 100), b = ::fcntl(small.get(), F_DUPFD, 100);
          if (::dup2(a, 3) != 3 || ::dup2(b, 4) != 4) return 3;
          setenv("NOTIFY_SOCKET", "/nowhere", 1);
          setenv("LISTEN_PID", absl::StrCat(getpid()).c_str(), 1);
          setenv("LISTEN_FDS", "2", 1);
          setenv("LISTEN_FDNAMES", "kvist-pool-1-0:kvist-index-1-1", 1);
          if (KeptBytes("kvist-pool-") != KiB(8) || KeptBytes("kvist-") != KiB(12)) return 4;
          const std::optional<FileKeeper> keeper = ServiceFileKeeper();
          if (!keeper.has_value() || keeper->kept.size() != 2) return 5;
          if (keeper->kept.at("kvist-pool-1-0").get() != 3 || keeper->kept.at("kvist-index-1-1").get() != 4) return 6;
          return KeptBytes("kvist-") == Bytes{} ? 0 : 7;
        }) == 0);
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
