#include "storage/base/check.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "tests/support/child_process.h"

namespace kvist {
namespace {

TEST_CASE("KVIST_CHECK lets what holds pass, once") {
  int evaluated = 0;
  KVIST_CHECK(++evaluated == 1);
  CHECK(evaluated == 1);
}

TEST_CASE("KVIST_CHECK says what failed and where, and aborts") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  test::ChildProcess child([&] {
    dup2(ends[1], STDERR_FILENO);
    KVIST_CHECK(1 + 1 == 3);
    return 0;
  });
  close(ends[1]);
  std::string output;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) output.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  CHECK(child.Wait() == -SIGABRT);
  CHECK(output.find("1 + 1 == 3") != std::string::npos);
  CHECK(output.find("check_test.cc") != std::string::npos);
}

}  // namespace
}  // namespace kvist
