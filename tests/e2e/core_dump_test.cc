// A kvistd that dies leaves no user's KV behind in a core.
#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::TempDir;

namespace {

// Of its memory that has a name like this: how many mappings there are, and how many of them would be in a core.
struct Mappings {
  int all = 0, dumped = 0;
};
Mappings MappingsOf(pid_t pid, const std::string& name) {
  Mappings found;
  bool named = false;
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) named = line.find(name) != std::string::npos;  // "from-to rw-s .. NAME" begins each
    if (!named || line.rfind("VmFlags:", 0) != 0) continue;
    ++found.all;
    found.dumped += (line + " ").find(" dd ") == std::string::npos;
  }
  return found;
}

}  // namespace

TEST_CASE("A kvistd that somebody starts by hand leaves no core, and none would hold what it shares with engines") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "pool.keep=\"never\""}, "", "ulimit -S -c $(ulimit -H -c)");
  std::ifstream limits("/proc/" + std::to_string(daemon.pid()) + "/limits");
  std::string core;
  while (core.rfind("Max core file size", 0) != 0) REQUIRE(std::getline(limits, core));
  std::istringstream words(core.substr(core.find("size") + 4));
  std::string soft, hard;
  words >> soft >> hard;
  CHECK(soft == "0");
  CHECK(hard == "0");

  const FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const Mappings sessions = MappingsOf(daemon.pid(), "/memfd:kvist-session");
  CHECK(sessions.all >= 2);  // a scheduler's and a worker's
  CHECK(sessions.dumped == 0);
  const Mappings all = MappingsOf(daemon.pid(), "/memfd:");
  CHECK(all.all > sessions.all);  // the engine's pages
  CHECK(all.dumped == 0);
}
