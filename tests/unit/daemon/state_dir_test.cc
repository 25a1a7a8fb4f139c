#include "daemon/state_dir.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

mode_t ModeOf(const std::string& path) {
  struct stat found {};
  REQUIRE(stat(path.c_str(), &found) == 0);
  return found.st_mode & 07777;
}

TEST_CASE("StateDir makes its directory for its user alone") {
  const test::TempDir dir;
  const absl::StatusOr<StateDir> state = StateDir::Lock(dir / "a/b");
  INFO(state.status().ToString());
  REQUIRE(state.ok());
  CHECK(state->path() == dir / "a/b");
  CHECK(ModeOf(dir / "a") == 0700);
  CHECK(ModeOf(dir / "a/b") == 0700);
  CHECK(ModeOf(dir / "a/b/lock") == 0600);
}

TEST_CASE("StateDir refuses a second daemon with the pid of the first, until that is gone") {
  const test::TempDir dir;
  {
    const absl::StatusOr<StateDir> first = StateDir::Lock(dir.path());
    REQUIRE(first.ok());
    const absl::StatusOr<StateDir> second = StateDir::Lock(dir.path());
    CHECK(second.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(absl::StrContains(second.status().message(),
                            absl::StrCat("in use by the process with pid ", getpid(), ": stop it")));
  }
  CHECK(StateDir::Lock(dir.path()).ok());
}

TEST_CASE("StateDir is free when its daemon was killed") {
  const test::TempDir dir;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  test::ChildProcess child([&] {
    const absl::StatusOr<StateDir> held = StateDir::Lock(dir.path());
    const char byte = held.ok() ? 1 : 0;
    if (write(ready[1], &byte, 1) != 1) return 1;
    for (;;) pause();
  });
  char locked = 0;
  REQUIRE(read(ready[0], &locked, 1) == 1);
  REQUIRE(locked == 1);
  CHECK(absl::StrContains(StateDir::Lock(dir.path()).status().message(), absl::StrCat("pid ", child.pid())));
  CHECK(child.Kill() == -SIGKILL);
  CHECK(StateDir::Lock(dir.path()).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("StateDir removes what it made when its daemon can't start, and nothing that was there") {
  const test::TempDir dir;
  for (const char* name : {"a/b", "a/b/"}) {
    absl::StatusOr<StateDir> made = StateDir::Lock(dir / name);
    REQUIRE(made.ok());
    std::filesystem::create_directories(dir / "a/b/ssd/1");
    made->GiveUp();
    CHECK(std::filesystem::is_empty(dir / "a"));
    made->GiveUp();
    CHECK(std::filesystem::exists(dir / "a"));
  }
  REQUIRE(StateDir::Lock(dir / "a").ok());
  absl::StatusOr<StateDir> found = StateDir::Lock(dir / "a");
  REQUIRE(found.ok());
  found->GiveUp();
  CHECK(std::filesystem::exists(dir / "a/lock"));
}

TEST_CASE("StateDir is held by one of several that take it and give it up at once, and is there while it is held") {
  const test::TempDir dir;
  std::atomic<int> holders{0}, held{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        absl::StatusOr<StateDir> state = StateDir::Lock(dir / "state");
        if (!state.ok()) continue;
        ++held;
        if (++holders != 1 || !std::filesystem::exists(dir / "state/lock")) ++wrong;
        std::this_thread::yield();
        --holders;
        state->GiveUp();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(held > 0);
  CHECK(wrong == 0);
}

TEST_CASE("StateDir refuses a directory that others can write to") {
  const test::TempDir dir;
  REQUIRE(chmod(dir.path().c_str(), 0770) == 0);
  CHECK(StateDir::Lock(dir.path()).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(StateDir::Lock("/tmp").status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("StateDir follows no link in the place of its lock") {
  const test::TempDir dir;
  std::filesystem::create_symlink(dir / "elsewhere", dir / "lock");
  CHECK_FALSE(StateDir::Lock(dir.path()).ok());
  CHECK_FALSE(std::filesystem::exists(dir / "elsewhere"));
}

TEST_CASE("StateDir says what is in its way") {
  const test::TempDir dir;
  REQUIRE(StateDir::Lock(dir / "a").ok());
  const absl::Status status = StateDir::Lock(dir / "a/lock/b").status();
  CHECK_FALSE(status.ok());
  CHECK(absl::StrContains(status.message(), "daemon.state_dir: can't make"));
}

}  // namespace
}  // namespace kvist::daemon
