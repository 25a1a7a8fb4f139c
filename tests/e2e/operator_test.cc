// What an operator does with a real kvistd.
#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/notify_socket.h"
#include "tests/support/sanitizers.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::BinDir;
using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::NotifySocket;
using kvist::test::RunProgram;
using kvist::test::StatusOf;
using kvist::test::StderrTo;
using kvist::test::TempDir;

namespace {

// kvistd with these arguments; what it writes to stdout, and its exit status.
std::pair<int, std::string> Kvistd(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinDir() + "/kvistd");
  std::string out;
  const int status = RunProgram(arguments, &out);
  return {status, out};
}

// kvistctl reload of a configuration that is refused: what it says.
std::string RefusedReload(const DaemonProcess& daemon) {
  const auto [status, said] = CtlSays(daemon, {"--timeout", "30s", "reload"});
  CHECK(status == 1);
  return said;
}

// Stops the reactor's thread and no other; GoOn lets it run again. 0, with a warning, where that can't be done.
pid_t StopReactor(const DaemonProcess& daemon) {
  pid_t reactor = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "kvist-reactor") reactor = std::stoi(task.path().filename());
  }
  REQUIRE(reactor != 0);
  if (::ptrace(PTRACE_SEIZE, reactor, nullptr, nullptr) != 0) {
    WARN("skipped: a single thread can't be stopped here (ptrace: errno " << errno << ")");
    return 0;
  }
  REQUIRE(::ptrace(PTRACE_INTERRUPT, reactor, nullptr, nullptr) == 0);
  int status = 0;
  REQUIRE(::waitpid(reactor, &status, __WALL) == reactor);
  return reactor;
}
void GoOn(pid_t reactor) { REQUIRE(::ptrace(PTRACE_DETACH, reactor, nullptr, nullptr) == 0); }

std::string TenantOfLast(const DaemonProcess& daemon) {
  const nlohmann::json sessions = Ctl(daemon, {"sessions"})["sessions"];
  return sessions.empty() ? "" : sessions.back()["tenant"].get<std::string>();
}

// Memory that a process may take yet, as this machine says; its cgroups may allow less.
uint64_t AvailableBytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    uint64_t kib = 0;
    if (word == "MemAvailable:" && info >> kib) return kib << 10;
  }
  return 0;
}

// Whether it says FILE:LINE:COLUMN.
bool NamesALineOf(const std::string& file, const std::string& text) {
  return std::regex_search(text, std::regex(file + ":[0-9]+:[0-9]+: "));
}

}  // namespace

TEST_CASE("What config dump and config default print is a configuration that kvistd takes") {
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml", again = dir.path() + "/again.toml";
  const auto [status, defaults] = Kvistd({"config", "default"});
  REQUIRE(status == 0);
  std::ofstream(file) << defaults;
  const std::vector<std::string> sets{
      "--set", "daemon.state_dir=" + dir.path() + "/state",  "--set", "session.socket=" + dir.path() + "/engine.sock",
      "--set", "admin.socket=" + dir.path() + "/admin.sock", "--set", "pool.bytes=64MiB"};
  const auto with_sets = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    return Kvistd(arguments);
  };
  CHECK(with_sets({"config", "check", "--config", file}) == std::pair(0, file + ": ok\n"));
  const auto [dumped, dump] = with_sets({"--config", file, "config", "dump"});
  REQUIRE(dumped == 0);
  std::ofstream(again) << dump;
  CHECK(Kvistd({"--config", again, "config", "dump"}) == std::pair(0, dump));
  const auto diff = nlohmann::json::parse(with_sets({"--config", file, "config", "diff", "-o", "json"}).second);
  REQUIRE(diff.size() == 4);
  CHECK(diff[3] == nlohmann::json{{"key", "pool.bytes"}, {"value", "64MiB"}, {"default", 0}});

  std::ofstream(file) << "[pool]\nbytes = 1\nbite = 2\n";
  const auto [refused, verdict] = Kvistd({"--config", file, "config", "check", "-o", "json"});
  CHECK(refused == 2);
  CHECK(nlohmann::json::parse(verdict)["errors"].size() == 2);
  CHECK(Kvistd({"--config", file}).first == 2);
}

TEST_CASE("A reload puts all of a new configuration in force, and says what needs a restart") {
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml", own = std::to_string(::getuid());
  std::ofstream(file) << "[lease]\nmax = \"1h\"\n";
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"}, file);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const kvist::Hit old = engine.scheduler().Lookup(keys, 3'600'000'000);
  REQUIRE(old.lease.id() != 0);
  CHECK(TenantOfLast(daemon) == "uid:" + own);

  std::ofstream(file) << "[lease]\nmax = \"1ms\"\n[tenants]\n" << own << " = \"blue\"\n[copy]\nthreads = 1\n";
  CHECK(Ctl(daemon, {"reload"}) ==
        nlohmann::json{{"in_force", {"lease.max", "tenants." + own}}, {"needs_restart", {"copy.threads"}}});
  // On the core: a lease from now on ends after 1 ms, and what was granted before stays.
  const kvist::Hit brief = engine.scheduler().Lookup(keys, 3'600'000'000);
  REQUIRE(brief.lease.id() != 0);
  CHECK(Eventually([&] { return StatusOf(daemon)["leases"] == 1; }));
  // On the listener: who connects now is another tenant, who is there stays what it was.
  FakeEngine other(FakeEngine::On(daemon.socket()));
  REQUIRE(other.status.ok());
  CHECK(TenantOfLast(daemon) == "blue");
  CHECK(Ctl(daemon, {"sessions"})["sessions"][0]["tenant"] == "uid:" + own);
  CHECK(other.scheduler().Lookup(keys, 0).chunks == 0);

  // And no more connections than these four.
  std::ofstream(file, std::ios::app) << "[session]\nconnections_max = 4\n";
  CHECK(Ctl(daemon, {"reload"})["in_force"] == nlohmann::json{"session.connections_max"});
  FakeEngine::Options third = FakeEngine::On(daemon.socket());
  third.connect_timeout_us = 100'000;
  FakeEngine refused(third);
  CHECK(Ctl(daemon, {"sessions"})["sessions"].size() == 4);
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("kvistd is ready within 2 s, long before a pool of 16 GiB is touched") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  // Of a pool that it could never touch kvistd would say so, and not start.
  const uint64_t available = AvailableBytes();
  const uint64_t bytes = std::min(16 * kGiB, available / 9 * 8 / kGiB * kGiB);
  if (bytes < 2 * kGiB) {
    WARN("skipped: only " << (available >> 20) << " MiB of memory are available here, a smaller pool is touched at once");
    std::printf("READY: skipped, only %lu MiB of memory are available here\n", available >> 20);
    return;
  }
  TempDir dir;
  const NotifySocket manager(dir.path() + "/notify");
  const auto start = std::chrono::steady_clock::now();
  DaemonProcess daemon(dir.path(), {"pool.bytes=" + std::to_string(bytes / kGiB) + "GiB", "log.level=error"});
  CHECK_THAT(manager.Receive(20'000), Catch::StartsWith("READY=1\n"));
  const std::chrono::duration<double> ready = std::chrono::steady_clock::now() - start;
  const nlohmann::json pool = StatusOf(daemon)["pool"];
  daemon.Kill();  // before it has touched much
  std::printf("READY after %.3f s with a pool of %lu GiB, of which %.1f GiB were touched then; asked for: 2 s\n",
              ready.count(), bytes / kGiB, pool["touched_bytes"].get<double>() / kGiB);
  CHECK(pool["capacity_bytes"] == bytes);
  CHECK(pool["touched_bytes"] < bytes);
  if (!kvist::test::kSanitized) CHECK(ready.count() <= 2);
}

TEST_CASE("A clear is a job that an operator can list, and asking again for the same one starts no other") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const auto clear = [&](const std::string& request) { return Ctl(daemon, {"clear", "--yes", "--request", request}); };
  const nlohmann::json first = clear("tonight");
  CHECK(first["state"] == "done");
  CHECK(first["chunks"] == 8);
  CHECK(first["done"] == first["total"]);
  CHECK(engine.scheduler().Lookup(keys, 0).chunks == 0);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  CHECK(clear("tonight") == first);
  CHECK(engine.scheduler().Lookup(keys, 0).chunks == 8);
  CHECK(clear("tomorrow")["id"] == 2);
  CHECK(engine.scheduler().Lookup(keys, 0).chunks == 0);
  const nlohmann::json jobs = Ctl(daemon, {"jobs"})["jobs"];
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0] == first);
  CHECK(jobs[1]["request"] == "tomorrow");
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Row 38: a reload that is refused changes nothing, and engines are served as before") {
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml", own = std::to_string(::getuid());
  std::ofstream(file) << "[tenants]\n" << own << " = \"blue\"\n";
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "log.level=error"}, file);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  const auto keys = engine.Keys(1, 8);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);

  std::ofstream(file) << "[tenants]\n" << own << " = \"red\"\n[pool]\nbite = 1\n";
  const std::string said = RefusedReload(daemon);
  CHECK_THAT(said, Catch::Contains(file + ":4:1: pool.bite: unknown key (did you mean bytes?)"));
  std::filesystem::rename(file, file + ".away");
  CHECK_THAT(RefusedReload(daemon), Catch::Contains(file));
  std::filesystem::rename(file + ".away", file);
  daemon.Signal(SIGHUP);
  CHECK_THAT(RefusedReload(daemon), Catch::Contains(":4:1: pool.bite"));  // and the signal before it ended nothing
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  FakeEngine second(FakeEngine::On(daemon.socket()));
  REQUIRE(second.status.ok());
  CHECK(TenantOfLast(daemon) == "blue");

  std::ofstream(file) << "[tenants]\n" << own << " = \"red\"\n";
  daemon.Signal(SIGHUP);
  CHECK(Eventually([&] {
    FakeEngine next(FakeEngine::On(daemon.socket()));
    return next.status.ok() && TenantOfLast(daemon) == "red";
  }));
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Row 38: a reload that a busy kvistd doesn't get to is refused whole, and may be tried again") {
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml", own = std::to_string(::getuid());
  std::ofstream(file) << "[tenants]\n" << own << " = \"blue\"\n";
  const StderrTo log(dir.path() + "/log");
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"}, file);
  std::ofstream(file) << "[tenants]\n" << own << " = \"red\"\n[lease]\nmax = \"1m30s\"\n";
  if (const pid_t reactor = StopReactor(daemon); reactor != 0) {
    CHECK_THAT(RefusedReload(daemon), Catch::Contains("nothing of the new configuration is in force"));
    GoOn(reactor);
  }
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    CHECK(TenantOfLast(daemon) == "blue");
  }
  CHECK(Ctl(daemon, {"reload"})["in_force"] == nlohmann::json{"lease.max", "tenants." + own});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  CHECK(TenantOfLast(daemon) == "red");
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Row 38: configurations with any one thing wrong are refused with its place, at the start and at a reload") {
  // Whole files, each wrong in one place.
  const std::vector<std::string> wrong{"[pool]\nbytes = -1\n",
                                       "[pool]\nbytes = \"4 parsecs\"\n",
                                       "[pool]\nbytes = 1.5\n",
                                       "[pool]\nslab_bytes = 3\n",
                                       "[pool]\ntouch_threads = -1\n",
                                       "[pool]\nlock = \"maybe\"\n",
                                       "[pool]\nbyte = 1\n",
                                       "[session]\nsocket = 7\n",
                                       "[session]\nsocket_mode = \"9999\"\n",
                                       "[session]\nconnections_max = 0\n",
                                       "[session]\nconnections_per_uid = -5\n",
                                       "[copy]\nthreads = 0\n",
                                       "[copy]\ncpus = \"all\"\n",
                                       "[lease]\nmax = \"2 days\"\n",
                                       "[lease]\nmax = 60\n",
                                       "[lease]\nshare = 0\n",
                                       "[lease]\nshare = 2.0\n",
                                       "[lease]\nhalf_store = \"-1s\"\n",
                                       "[metrics]\nlisten = \"nowhere\"\n",
                                       "[metrics]\ntenants_max = \"many\"\n",
                                       "[log]\nlevel = \"loud\"\n",
                                       "[log]\nformat = \"xml\"\n",
                                       "[log]\nlevel = \"info\"\nlevel = \"warn\"\n",
                                       "[log]\nlevel = \n",
                                       "[log\nlevel = \"info\"\n",
                                       "[tenants]\nroot = \"blue\"\n",
                                       "[tenants]\n0 = 5\n",
                                       "[daemon]\nstate_dir = []\n",
                                       "[nonsense]\na = 1\n",
                                       "lease = 1\n",
                                       "\xff\xfe\n"};
  // Right elsewhere, perhaps, but not on this machine.
  const std::string tls_files = "certificate_file = \"/nowhere/c\"\nkey_file = \"/nowhere/k\"\nca_file = \"/nowhere/a\"\n";
  const std::string remote = "[remote]\nstore = \"redis://127.0.0.1:1\"\n";
  const std::vector<std::string> elsewhere{"[copy]\ncpus = [1023]\n",
                                           "[session]\nreactor_cpu = 1023\n",
                                           "[session]\nsocket_group = \"no-such-group\"\n",
                                           "[admin]\nsocket_group = \"no-such-group\"\n",
                                           "[admin]\nlisten = \"127.0.0.1:9416\"\n[tls]\n" + tls_files,
                                           remote + "secret_file = \"/nowhere/secret\"\n",
                                           remote + "credentials_file = \"/nowhere/credentials\"\n"};
  // The same of keys that the running kvistd below has from its command line, so that a reload takes them from there.
  const std::vector<std::string> at_start{
      "[pool]\nbytes = \"16TiB\"\n", "[session]\nsocket = \"/nowhere/at/all/engine.sock\"\n",
      "[admin]\nsocket = \"/nowhere/at/all/admin.sock\"\n", "[session]\nsocket = \"/tmp\"\n",
      "[session]\nsocket = \"/tmp/a.sock\"\n[admin]\nsocket = \"/tmp/./a.sock\"\n"};
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml";
  std::ofstream(file) << "[lease]\nmax = \"1h\"\n";
  std::optional<DaemonProcess> running;
  {
    const StderrTo log(dir.path() + "/log");  // each of them is an error there
    running.emplace(dir.path(), std::vector<std::string>{"pool.bytes=64MiB"}, file);
  }
  DaemonProcess& daemon = *running;
  uint32_t accepted = 0;
  const auto is_refused = [&](const std::string& text, const std::string& command) {
    INFO(text << command);
    std::ofstream(file) << text;
    std::string said;
    const std::string start =
        BinDir() + "/kvistd --config " + file + " --set daemon.state_dir=" + dir.path() + "/state2 " + command + " 2>&1";
    const int status = RunProgram({"/bin/sh", "-c", "timeout 20 " + start}, &said);
    CHECK(status == 2);
    CHECK(NamesALineOf(file, said));
    accepted += status != 2 || !NamesALineOf(file, said);
  };
  for (const std::vector<std::string>* texts : {&wrong, &elsewhere, &at_start}) {
    for (const std::string& text : *texts) {
      is_refused(text, "");
      is_refused(text, "config check");
      if (texts == &at_start) continue;
      INFO(text);
      const std::string refused = RefusedReload(daemon);
      CHECK(NamesALineOf(file, refused));
      accepted += !NamesALineOf(file, refused);
    }
  }
  std::printf(
      "row 38: %zu invalid configurations and %zu for another machine, at the start, by config check and, all but "
      "%zu, at a reload; accepted %u\n",
      wrong.size(), elsewhere.size() + at_start.size(), at_start.size(), accepted);
  CHECK(accepted == 0);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  CHECK(engine.status.ok());
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("A service manager hears of readiness, reloads and the end, and of life only while the reactor makes progress") {
  constexpr int kLong = 20'000;
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml";
  std::ofstream(file) << "[lease]\nmax = \"1h\"\n";
  const NotifySocket manager(dir.path() + "/notify");
  ::setenv("WATCHDOG_USEC", "200000", 1);
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "log.level=error"}, file);
  ::unsetenv("WATCHDOG_USEC");
  // The next that is no ping.
  const auto news = [&] {
    std::string message;
    do { message = manager.Receive(kLong); } while (message == "WATCHDOG=1");
    return message;
  };
  CHECK_THAT(news(), Catch::StartsWith("READY=1\nSTATUS=serving engines on " + daemon.socket()));
  for (int i = 0; i < 3; ++i) CHECK(manager.Receive(kLong) == "WATCHDOG=1");

  std::ofstream(file) << "[lease]\nmax = 1\n";
  daemon.Signal(SIGHUP);
  CHECK_THAT(news(), Catch::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  const std::string refused = news();
  CHECK_THAT(refused, Catch::StartsWith("READY=1\n"));
  CHECK_THAT(refused, Catch::Contains("reload refused: " + file + ":2:7: lease.max"));
  std::ofstream(file) << "[lease]\nmax = \"1m\"\n[copy]\nthreads = 1\n";
  daemon.Signal(SIGHUP);
  CHECK_THAT(news(), Catch::StartsWith("RELOADING=1"));
  CHECK_THAT(news(), Catch::EndsWith("; waiting for a restart: copy.threads"));

  // All other threads go on, the one that sends pings too.
  const pid_t reactor = StopReactor(daemon);
  if (reactor != 0) {
    // What it did before it stood may be told once; then nothing, in the time of ten pings.
    while (manager.Receive(0) == "WATCHDOG=1") {}
    int pings = 0;
    while (manager.Receive(1000) == "WATCHDOG=1") REQUIRE(++pings <= 10);
    CHECK(manager.Receive(1000) == "");
    GoOn(reactor);
    CHECK(manager.Receive(kLong) == "WATCHDOG=1");
    CHECK(manager.Receive(kLong) == "WATCHDOG=1");
  }
  CHECK(daemon.Terminate() == 0);
  CHECK_THAT(news(), Catch::StartsWith("STOPPING=1\n"));
  CHECK(manager.Receive(0) == "");
}
