// Rows 27 and 28 of the fault matrix: memory that is limited (locked memory, address space, cgroups), used up, or wanted by others.
#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/memory_cgroup.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

using kvist::test::Bystander;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::KvistdCommand;
using kvist::test::MemoryCgroup;
using kvist::test::StatusOf;
using kvist::test::StderrTo;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using kvist::test::WorkingEngine;

namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string Content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// What a kvistd that can't start says, and its exit status.
std::pair<int, std::string> Refusal(const std::string& dir, const std::vector<std::string>& settings,
                                    const std::string& before) {
  std::string said;
  const int status = kvist::test::RunProgram(KvistdCommand(dir, settings, "", "exec 2>&1\n" + before), &said);
  return {status, said};
}

// A process that takes more and more memory of a cgroup until it is killed, by the kernel or by the test.
// `adjust`: its oom_score_adj.
ChildProcess Glutton(const MemoryCgroup& cgroup, const char* adjust) {
  return ChildProcess([&] {
    std::ofstream("/proc/self/oom_score_adj") << adjust << std::flush;
    if (!cgroup.EnterSelf()) return 1;
    while (::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) != MAP_FAILED) {}
    return 2;
  });
}

// The pool, what kvistd is besides, and as much again.
constexpr uint64_t kPool = 64 * kMiB, kCgroup = 256 * kMiB;

}  // namespace

TEST_CASE("Row 27: a kvistd that may lock little memory says which limit to raise, and serves unlocked") {
  TempDir dir;
  const std::string log = dir.path() + "/log";
  {
    const StderrTo file(log);
    // Root may lock what it likes as long as it has the capability.
    const std::string before = ::geteuid() == 0
                                   ? "ulimit -l 64\nset -- \"$0\" \"$@\"\nexec setpriv --bounding-set -ipc_lock "
                                     "--inh-caps -ipc_lock \"$@\""
                                   : "ulimit -l 64";
    DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"}, "", before);
    CHECK(StatusOf(daemon)["pool"]["locked"] == false);
    const Bystander served(daemon);
  }
  const std::string said = Content(log);
  std::printf("row 27: locked memory limited: serves unlocked, and says: %s", said.c_str());
  CHECK_THAT(said, Catch::Contains("RLIMIT_MEMLOCK is 65536") && Catch::Contains("LimitMEMLOCK"));
}

TEST_CASE("Row 27: a kvistd that can have no huge pages says so, and serves from small ones") {
  uint64_t free = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> free;
  if (free > 0) {
    WARN("skipped: " << free << " hugetlb pages are free here, and a pool takes those first");
    return;
  }
  TempDir dir;
  const std::string log = dir.path() + "/log";
  {
    const StderrTo file(log);
    REQUIRE(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);  // what is started now inherits it
    // Not to be touched with huge pages at the start, nor when it is used.
    const char* const keep = GENERATE("never", "always");
    DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", std::string("pool.keep=") + keep});
    REQUIRE(::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0);
    const Bystander served(daemon);
    REQUIRE(Eventually([&] { return StatusOf(daemon)["pool"]["touched_bytes"] == 64 * kMiB; }));
    CHECK(StatusOf(daemon)["pool"]["page_bytes"] == 4096);
    const std::string pages = Content("/proc/" + std::to_string(daemon.pid()) + "/smaps_rollup");
    CHECK_THAT(pages, Catch::Contains("AnonHugePages:         0 kB") && Catch::Contains("ShmemPmdMapped:        0 kB"));
  }
  const std::string said = Content(log);
  std::printf("row 27: no huge pages: serves from small ones, and says: %s", said.c_str());
  CHECK_THAT(said, Catch::Contains("no huge pages") && Catch::Contains("PR_SET_THP_DISABLE"));
}

TEST_CASE("Row 27: a kvistd whose pool doesn't fit its address space refuses to start and names pool.bytes") {
  TempDir dir;
  // By far, and by just too little for its threads.
  for (const char* limit : {"ulimit -v 1500000", "ulimit -v 2300000"}) {
    const auto [status, said] = Refusal(dir.path(), {"pool.bytes=2GiB"}, limit);
    std::printf("row 27: address space limited: %s", said.c_str());
    CHECK(status == 1);
    CHECK_THAT(said, Catch::Contains("pool.bytes") && Catch::Contains("RLIMIT_AS"));
  }
}

TEST_CASE("Row 27: a kvistd whose pool is larger than its cgroup's limit refuses to start; by itself it takes less") {
  TempDir dir;
  const MemoryCgroup cgroup(kCgroup);
  if (!cgroup.why().empty()) {
    WARN("skipped: " << cgroup.why());
    std::printf("row 27: cgroup limit: skipped, %s\n", cgroup.why().c_str());
    return;
  }
  const auto [status, said] = Refusal(dir.path(), {"pool.bytes=1GiB"}, cgroup.Enter());
  std::printf("row 27: cgroup v%d limited to %lu MiB: %s", cgroup.version(), kCgroup / kMiB, said.c_str());
  CHECK(status == 2);
  CHECK_THAT(said, Catch::Contains("pool.bytes") && Catch::Contains(cgroup.limit_file()));
  DaemonProcess daemon(dir.path(), {}, "", cgroup.Enter());
  const uint64_t pool = StatusOf(daemon)["pool"]["capacity_bytes"];
  std::printf("row 27: without pool.bytes it serves a pool of %lu MiB there\n", pool / kMiB);
  CHECK(pool > 0);
  CHECK(pool <= kCgroup / 4);
  const Bystander served(daemon);
}

TEST_CASE("Row 27: a pool that is full of leased chunks refuses stores and counts them, and loads go on") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=16MiB", "lease.share=1"});
  FakeEngine engine(FakeEngine::LargeOn(daemon.socket(), "full"));
  REQUIRE(engine.status.message == "");
  std::vector<kvist::Hit> kept;
  std::vector<std::vector<kvist_key>> held;
  uint32_t refused = 0, copied = 0;
  for (uint32_t prompt = 0; refused == 0; ++prompt) {
    REQUIRE(prompt < 100);
    const auto keys = engine.Keys(1000 * prompt, 16);
    const kvist_result stored = engine.StoreAll(keys);
    CHECK(stored.status == KVIST_OK);
    CHECK(stored.chunks_copied + stored.chunks_refused == 16);
    refused += stored.chunks_refused;
    copied += stored.chunks_copied;
    kept.push_back(engine.scheduler().Lookup(keys, 60'000'000));
    CHECK(kept.back().chunks == stored.chunks_copied);
    held.push_back(keys);
  }
  for (uint32_t prompt = 500; prompt < 510; ++prompt) {
    const kvist_result stored = engine.StoreAll(engine.Keys(1000 * prompt, 16));
    CHECK(stored.status == KVIST_OK);
    refused += stored.chunks_refused;
    copied += stored.chunks_copied;
  }
  uint32_t loaded = 0;
  for (const auto& keys : held) {
    std::string wrong;
    loaded += engine.LoadAll(keys, &wrong);
    CHECK(wrong == "");
  }
  const auto status = StatusOf(daemon);
  std::printf("row 27: full pool: %u chunks stored, %u refused, %lu counted as refused; %u chunks loaded meanwhile\n",
              copied, refused, status["chunks_refused"].get<uint64_t>(), loaded);
  CHECK(refused >= 160);
  CHECK(status["chunks_refused"] == refused);
  CHECK(loaded == copied);
  kept.clear();  // with the leases gone there is room again
  CHECK(Eventually([&] { return engine.StoreAll(engine.Keys(900'000, 16)).chunks_refused == 0; }));
}

TEST_CASE("Row 28: others take the memory of kvistd's cgroup: it survives, or starts again clean") {
  const int kills = Campaign("KVIST_MEMORY_KILLS", 3, 20);
  TempDir dir;
  const MemoryCgroup cgroup(kCgroup);
  if (!cgroup.why().empty()) {
    WARN("skipped: " << cgroup.why());
    std::printf("row 28: skipped, %s\n", cgroup.why().c_str());
    return;
  }
  const bool high = cgroup.SetHigh(kCgroup - kCgroup / 8);
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"}, "", cgroup.Enter());
  WorkingEngine engine(daemon.socket(), "working");
  REQUIRE(engine.status().message == "");
  const auto hits = [&] { return engine.hits(); };
  REQUIRE(UntilItGoesOn(hits, std::chrono::seconds(20)) >= 0);

  // The other is killed for it, again and again; kvistd, whose pool is locked, isn't touched.
  const pid_t pid = daemon.pid();
  int died = 0;
  for (int kill = 0; kill < kills; ++kill) {
    ChildProcess other = Glutton(cgroup, "1000");
    std::optional<int> end;
    CHECK(Eventually([&] { return (end = other.Ended()).has_value(); }));
    CHECK(end == -SIGKILL);
    CHECK(UntilItGoesOn(hits, std::chrono::seconds(20)) >= 0);
    died += daemon.Ended().has_value();
    REQUIRE(died == 0);
  }
  CHECK(daemon.pid() == pid);

  // kvistd is killed for it: what follows is a supervisor's restart.
  int restarts = 0, sigbus = 0;
  for (int kill = 0; kill < kills; ++kill) {
    std::ofstream("/proc/" + std::to_string(daemon.pid()) + "/oom_score_adj") << "1000" << std::flush;
    std::optional<int> end;
    {
      const ChildProcess other = Glutton(cgroup, "0");
      CHECK(Eventually([&] { return (end = daemon.Ended()).has_value(); }));
    }
    REQUIRE(end.has_value());
    CHECK(*end == -SIGKILL);
    sigbus += *end == -SIGBUS;
    CHECK(UntilItGoesOn([&] { return engine.computed(); }, std::chrono::seconds(20)) >= 0);
    daemon.Start();
    ++restarts;
    CHECK(UntilItGoesOn(hits, std::chrono::seconds(5)) >= 0);
  }
  engine.Finish();
  std::printf(
      "row 28: cgroup v%d of %lu MiB (memory.high %s): %d others killed beside a kvistd with %d restarts; kvistd killed %d "
      "times, "
      "restarts %d, by SIGBUS %d; %lu prompts served whole, wrong chunks %lu\n",
      cgroup.version(), kCgroup / kMiB, high ? "set" : "not there", kills, died, kills, restarts, sigbus, engine.hits(),
      engine.wrong());
  CHECK(sigbus == 0);
  CHECK(cgroup.Kills() >= static_cast<uint64_t>(2 * kills));
  CHECK(engine.wrong() == 0);
  daemon.Kill();
}
