#include "daemon/progress_watch.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <vector>

namespace kvist::daemon {
namespace {

TEST_CASE("ProgressWatch tells progress only when its last task was run, and keeps one under way") {
  std::vector<std::function<void()>> tasks;
  auto watch = std::make_unique<ProgressWatch>([&](std::function<void()> task) { tasks.push_back(std::move(task)); });
  for (int i = 0; i < 3; ++i) CHECK_FALSE(watch->Progressed());
  REQUIRE(tasks.size() == 1);  // a thread that hangs isn't buried under questions
  tasks[0]();
  CHECK(watch->Progressed());
  REQUIRE(tasks.size() == 2);
  CHECK_FALSE(watch->Progressed());  // what was run before doesn't count again
  tasks[1]();
  CHECK(watch->Progressed());
  watch.reset();
  tasks[2]();  // after it is gone
}

}  // namespace
}  // namespace kvist::daemon
