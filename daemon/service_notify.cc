#include "daemon/service_notify.h"

#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"

namespace kvist::daemon {
namespace {

void Notify(const std::string& assignments) { sd_notify(0, assignments.c_str()); }

// A message is lines of assignments: a status with a newline, from a configuration perhaps, would be more than a status.
std::string StatusLine(absl::string_view status) {
  std::string line = absl::StrCat("STATUS=", status);
  std::replace_if(line.begin(), line.end(), absl::ascii_iscntrl, ' ');
  return line;
}

}  // namespace

void NotifyReady(absl::string_view status) { Notify(absl::StrCat("READY=1\n", StatusLine(status))); }

void NotifyReloading() { Notify(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", MonotonicNanos() / 1000)); }

void NotifyStopping(absl::string_view status) { Notify(absl::StrCat("STOPPING=1\n", StatusLine(status))); }

void NotifyWatchdog() { Notify("WATCHDOG=1"); }

std::optional<FileKeeper> ServiceFileKeeper() {
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return std::nullopt;
  FileKeeper keeper;
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    keeper.kept[names[i]] = UniqueFd(SD_LISTEN_FDS_START + i);
    std::free(names[i]);
  }
  std::free(names);
  keeper.keep = [](const std::string& name, int file) {
    // A file of memory can't be polled: without FDPOLL=0 a manager may take that for its end.
    const std::string message = absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", name);
    sd_pid_notify_with_fds(0, 0, message.c_str(), &file, 1);
  };
  keeper.drop = [](const std::string& name) { Notify(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name)); };
  return keeper;
}

Bytes KeptBytes(absl::string_view prefix) {
  Bytes sum{};
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/0, &names);
  for (int i = 0; i < count; ++i) {
    struct stat status {};
    if (absl::StartsWith(names[i], prefix) && ::fstat(SD_LISTEN_FDS_START + i, &status) == 0)
      sum += Bytes{static_cast<uint64_t>(status.st_size)};
    std::free(names[i]);
  }
  std::free(names);
  return sum;
}

absl::Duration WatchdogPeriod() {
  uint64_t micros = 0;
  if (sd_watchdog_enabled(0, &micros) <= 0) return absl::InfiniteDuration();
  return absl::Microseconds(static_cast<int64_t>(micros)) / 2;
}

}  // namespace kvist::daemon
