#include "daemon/thread_limit.h"

#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace kvist::daemon {

absl::Status ThreadsLeft(int count) {
  absl::Notification tried;
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    while (static_cast<int>(threads.size()) < count) threads.emplace_back([&tried] { tried.WaitForNotification(); });
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("only ", threads.size(), " threads can be started, and it needs ", count, " (", error.code().message(),
                     "): raise what limits them (systemd: TasksMax; shell: ulimit -u; container: its limit of processes)"));
  }
  tried.Notify();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace kvist::daemon
