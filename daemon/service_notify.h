#ifndef KVIST_DAEMON_SERVICE_NOTIFY_H_
#define KVIST_DAEMON_SERVICE_NOTIFY_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/file_keeper.h"
#include "storage/base/units.h"

// What systemd hears of a kvistd (sd_notify(3), Type=notify). Without $NOTIFY_SOCKET nothing is sent; that nobody listens is no error.
// `status` is the line that `systemctl status` shows; control characters in it become blanks.
//
// Threads: any.
namespace kvist::daemon {

void NotifyReady(absl::string_view status);  // serving: at first, and again when a reload is over, however it ended
void NotifyReloading();                      // with the monotonic time, as Type=notify-reload wants it
void NotifyStopping(absl::string_view status);
void NotifyWatchdog();

// How often NotifyWatchdog is wanted: half of WatchdogSec; infinite when nobody watches this process.
absl::Duration WatchdogPeriod();

// Keeps files with the service manager (its fd store): until the service is stopped, over restarts and crashes. A manager that keeps none
// doesn't say so. Nothing without $NOTIFY_SOCKET. Once a process: what was kept is handed over.
std::optional<FileKeeper> ServiceFileKeeper();

// How much lies in files of memory that were kept and whose names begin so; 0 once they are handed over.
Bytes KeptBytes(absl::string_view prefix);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SERVICE_NOTIFY_H_
