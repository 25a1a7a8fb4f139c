#include "daemon/service_notify.h"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
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

absl::Duration WatchdogPeriod() {
  uint64_t micros = 0;
  if (sd_watchdog_enabled(0, &micros) <= 0) return absl::InfiniteDuration();
  return absl::Microseconds(static_cast<int64_t>(micros)) / 2;
}

}  // namespace kvist::daemon
