#include "daemon/thread_limit.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

namespace kvist::daemon {
namespace {

constexpr uid_t kOther = 65531;  // nobody else's

TEST_CASE("ThreadsLeft says how many threads can be started, where they don't suffice") {
  CHECK(ThreadsLeft(0).ok());
  CHECK(ThreadsLeft(8).ok());
  if (::geteuid() != 0) {
    WARN("skipped: needs root, to be a user whom a limit binds");
    return;
  }
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{5, 5};  // itself included
    if (::setrlimit(RLIMIT_NPROC, &few) != 0 || ::setresuid(kOther, kOther, kOther) != 0) ::_exit(2);
    const absl::Status refused = ThreadsLeft(8);
    const std::string said = refused.ToString();
    const bool told = ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  ::close(ends[1]);
  std::string said(1024, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], said.data(), said.size()))));
  ::close(ends[0]);
  CHECK_THAT(said,
             Catch::StartsWith("RESOURCE_EXHAUSTED: only "));  // 4; one fewer where a sanitizer has a thread of its own
  CHECK_THAT(said, Catch::Contains(" threads can be started, and it needs 8 ("));
  CHECK_THAT(said, Catch::Contains("TasksMax"));
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace
}  // namespace kvist::daemon
