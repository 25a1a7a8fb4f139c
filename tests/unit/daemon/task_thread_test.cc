#include "daemon/task_thread.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <vector>

#include "absl/synchronization/notification.h"

namespace kvist::daemon {
namespace {

// `task` posts itself again as long as the thread runs.
void PostForEver(TaskThread* thread, std::atomic<int>* tasks) {
  thread->Post([thread, tasks] {
    ++*tasks;
    PostForEver(thread, tasks);
  });
}

TEST_CASE(
    "TaskThread has its own task done in its time, however much it is given, and what it is given, however often it is "
    "woken") {
  TaskThread thread;
  std::atomic<int> tasks = 0, own = 0;
  absl::Notification enough;
  const bool woken = GENERATE(false, true);
  PostForEver(&thread, &tasks);
  thread.Start([&] {
    if (++own == 20) enough.Notify();
    if (woken) thread.Wake();
    return absl::Milliseconds(1);
  });
  CHECK(enough.WaitForNotificationWithTimeout(absl::Seconds(20)));
  thread.Stop();
  CHECK(tasks >= 19);
}

TEST_CASE("TaskThread without a task of its own does what it is given, in its order") {
  TaskThread thread;
  thread.Start({});
  std::vector<int> done;
  absl::Notification last;
  for (int i = 0; i < 3; ++i) thread.Post([&done, i] { done.push_back(i); });
  thread.Post([&last] { last.Notify(); });
  REQUIRE(last.WaitForNotificationWithTimeout(absl::Seconds(20)));
  thread.Stop();
  CHECK(done == std::vector<int>{0, 1, 2});
  thread.Post([&done] { done.push_back(3); });
  CHECK(done.size() == 3);
}

}  // namespace
}  // namespace kvist::daemon
