// Row 40 of the fault matrix: two kvistds where there is room for one. The second is refused by name, the first isn't disturbed; what a
// dead one has left is taken over.
#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::Bystander;
using kvist::test::Campaign;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::KvistdCommand;
using kvist::test::RunProgram;
using kvist::test::StderrTo;
using kvist::test::TempDir;

namespace {

const std::vector<std::string> kSettings{"pool.bytes=64MiB", "pool.touch_threads=0"};

// What a second kvistd with these settings besides says, and its exit status.
std::pair<int, std::string> Second(const std::string& dir, std::vector<std::string> settings) {
  settings.insert(settings.begin(), kSettings.begin(), kSettings.end());
  std::string said;
  const int status = RunProgram(KvistdCommand(dir, settings, "", "exec 2>&1"), &said);
  return {status, said};
}

ino_t Inode(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

}  // namespace

TEST_CASE(
    "Row 40: a second kvistd on a state directory or socket in use is refused by name, and the first isn't disturbed") {
  TempDir dir;
  DaemonProcess first(dir.path(), kSettings);
  const Bystander bystander(first);
  const std::string engine = "session.socket=" + dir.path() + "/engine2.sock",
                    admin = "admin.socket=" + dir.path() + "/admin2.sock",
                    state = "daemon.state_dir=" + dir.path() + "/state2";
  const ino_t engine_socket = Inode(first.socket()), admin_socket = Inode(first.admin_socket());
  // A stopped one lives, too.
  const bool stopped = GENERATE(false, true);
  if (stopped) first.Signal(SIGSTOP);
  int tried = 0, by_name = 0;
  const auto refused = [&](const std::pair<int, std::string>& second, const std::vector<std::string>& names) {
    INFO(second.second);
    CHECK(second.first == 1);
    ++tried;
    by_name += second.first == 1 && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                 return second.second.find(name) != std::string::npos;
               });
    for (const std::string& name : names) CHECK_THAT(second.second, Catch::Contains(name));
    CHECK_FALSE(std::filesystem::exists(dir.path() + "/state2"));
  };
  refused(Second(dir.path(), {}), {dir.path() + "/state", "pid " + std::to_string(first.pid()), "daemon.state_dir"});
  refused(Second(dir.path(), {engine, admin}), {dir.path() + "/state", "pid " + std::to_string(first.pid())});
  refused(Second(dir.path(), {state, admin}), {first.socket(), "another process", "session.socket"});
  refused(Second(dir.path(), {state, engine}), {first.admin_socket(), "another process", "admin.socket"});
  if (stopped) first.Signal(SIGCONT);
  CHECK(Inode(first.socket()) == engine_socket);
  CHECK(Inode(first.admin_socket()) == admin_socket);
  const Bystander another(first);
  std::printf("row 40: %d of %d second kvistds refused by directory and pid or by socket%s\n", by_name, tried,
              stopped ? ", beside a stopped one" : "");
}

TEST_CASE(
    "Row 40: a second kvistd is refused the directory of another's SSD tier by its lock, and the first isn't disturbed") {
  TempDir dir, other;
  const std::string disk = dir.path() + "/disk", log = dir.path() + "/log";
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(), {"ssd.enabled=true", "ssd.path=" + disk, "ssd.capacity=256MiB"});
  DaemonProcess first(dir.path(), settings);
  {
    FakeEngine engine(FakeEngine::On(first.socket()));
    REQUIRE(engine.status.message == "");
    REQUIRE(engine.StoreAll(engine.Keys(1, 8)).status == KVIST_OK);
    uint32_t durable = 0;
    REQUIRE(engine.scheduler().Flush(20'000'000, &durable).ok());
    REQUIRE(durable == 8);
  }
  {
    const StderrTo file(log);
    DaemonProcess second(other.path(), settings);  // a state directory of its own: it serves, from DRAM alone
    { const Bystander served(second); }
    const std::string ssd = Ctl(second, {"ssd"}).dump();
    CHECK_THAT(ssd, Catch::Contains(disk + "/catalog.lock"));
    CHECK(second.Terminate() == 0);
  }
  std::ostringstream said;
  said << std::ifstream(log).rdbuf();
  std::printf("row 40: a second kvistd on the directory of an SSD tier: %s", said.str().c_str());
  CHECK_THAT(said.str(), Catch::Contains(disk + "/catalog.lock is locked: another kvistd") && Catch::Contains("ssd.path"));
  { const Bystander undisturbed(first); }
  // All that it had written is there when it comes again.
  first.Kill();
  first.Start();
  REQUIRE(HasRecovered(first));
  FakeEngine engine(FakeEngine::On(first.socket()));
  std::string wrong;
  CHECK(engine.LoadAll(engine.Keys(1, 8), &wrong) == 8);
  CHECK(wrong == "");
}

TEST_CASE("Row 40: what a killed kvistd has left is taken over by the next") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSettings);
  const int kills = Campaign("KVIST_DAEMON_KILLS", 5, 200);
  for (int kill = 0; kill < kills; ++kill) {
    const ino_t left = Inode(daemon.socket());
    daemon.Kill();
    CHECK(Inode(daemon.socket()) == left);  // nobody has cleaned up
    daemon.Start();
    CHECK(Inode(daemon.admin_socket()) != 0);
    const Bystander served(daemon);
  }
  std::printf("row 40: sockets and lock of %d killed kvistds taken over\n", kills);
}

TEST_CASE("Row 40: of two kvistds that start at once on one directory one serves and one is refused") {
  const int starts = Campaign("KVIST_TWO_STARTS", 5, 100);
  for (int start = 0; start < starts; ++start) {
    TempDir dir;
    std::array<int, 2> ends{};
    std::atomic<int> ended{0};
    std::vector<std::thread> both;
    for (int& end : ends) {
      both.emplace_back([&] {
        end = Second(dir.path(), {}).first;
        ++ended;
      });
    }
    const bool one_is_refused = Eventually([&] { return ended == 1; });
    CHECK(one_is_refused);
    const bool one_serves = Eventually([&] { return Inode(dir.path() + "/admin.sock") != 0; });
    CHECK(one_serves);
    pid_t owner = 0;
    std::ifstream(dir.path() + "/state/lock") >> owner;
    if (owner <= 1) std::abort();  // nobody would end the one that serves, for which the threads wait
    ::kill(owner, SIGTERM);
    for (std::thread& thread : both) thread.join();
    CHECK(ends[0] + ends[1] == 1);  // 0 ended by the signal, 1 refused
  }
  std::printf("row 40: %d times two started at once, one of them served\n", starts);
}
