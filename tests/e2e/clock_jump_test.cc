// Row 25 of the fault matrix, for leases: kvistd's wall clock jumps by an hour and by ten years, forwards and backwards. No lease ends
// early or late for it.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/sanitizers.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::BinDir;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StderrTo;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t kChunks = 4;
constexpr int64_t kBriefMicros = 200'000, kLongMicros = 600'000'000;
constexpr double kLateMs = 15'000;  // of a brief one: a busy machine, and no clock that was off by an hour
constexpr int64_t kHour = 3600, kTenYears = 3653 * 24 * kHour;

// The wall clock of a kvistd that is started as Before() says.
class WallClock {
 public:
  explicit WallClock(const std::string& file) : file_(file) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(::ftruncate(fd, sizeof(int64_t)) == 0);
    void* const mapped = ::mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(mapped != MAP_FAILED);
    ::close(fd);
    off_by_ = static_cast<std::atomic<int64_t>*>(mapped);
  }
  ~WallClock() { ::munmap(off_by_, sizeof(int64_t)); }
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;

  std::string Before() const {
    return "export LD_PRELOAD='" + BinDir() + "/../lib/libkvist_clock_jump.so' KVIST_CLOCK_JUMP='" + file_ + "'";
  }
  void Jump(int64_t seconds) const { *off_by_ = seconds; }

 private:
  std::string file_;
  std::atomic<int64_t>* off_by_;
};

kvist_status Load(FakeEngine& engine, const kvist::Hit& hit) {
  const kvist_op op = engine.worker(0).Load(hit.lease, 0, kChunks, engine.Pages(0, kChunks));
  REQUIRE(op != 0);
  return engine.worker(0).Wait(op, 10'000'000).status;
}

// The hours, from the year on, that a log tells.
std::set<std::string> LoggedHours(const std::string& file) {
  std::set<std::string> hours;
  std::ifstream log(file);
  for (std::string line; std::getline(log, line);)
    hours.insert(nlohmann::json::parse(line)["time"].get<std::string>().substr(0, sizeof "2026-11-21T15" - 1));
  return hours;
}

}  // namespace

TEST_CASE("Row 25: leases end by the monotonic clock, however the wall clock jumps") {
  if (kvist::test::kSanitized) {
    WARN("skipped: sanitizers want to be loaded before everything else");
    return;
  }
  TempDir dir;
  const WallClock wall(dir / "off_by");
  const std::string log = dir / "log";
  uint32_t leases = 0, early = 0, late = 0;
  double longest_ms = 0;
  constexpr std::array kJumps{kHour, -kHour, kTenYears, -kTenYears};
  {
    const StderrTo file(log);
    DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "log.format=json", "log.level=info", "lease.max=1h"}, "",
                         wall.Before());
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.message == "");
    const auto keys = engine.Keys(1, kChunks);
    REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
    const kvist::Hit long_one = engine.scheduler().Lookup(keys, kLongMicros);
    REQUIRE(long_one.lease);
    ++leases;
    for (const int64_t jump : kJumps) {
      INFO("the wall clock is off by " << jump << " s");
      // Across the jump: granted before it, and due after it.
      const auto granted = Clock::now();
      const kvist::Hit brief = engine.scheduler().Lookup(keys, kBriefMicros);
      REQUIRE(brief.lease);
      ++leases;
      wall.Jump(jump);
      kvist_status status = KVIST_OK;
      CHECK(Eventually([&] { return (status = Load(engine, brief)) != KVIST_OK; }));
      const double ended_ms = std::chrono::duration<double, std::milli>(Clock::now() - granted).count();
      late += ended_ms > kLateMs;
      CHECK(status == KVIST_ABORTED);
      early += ended_ms < static_cast<double>(kBriefMicros) / 1000;
      longest_ms = std::max(longest_ms, ended_ms);
      early += Load(engine, long_one) != KVIST_OK;
      FakeEngine::Options options = FakeEngine::On(daemon.socket(), "refused");  // something to log
      options.wrong_stride = true;
      CHECK(!FakeEngine(options).status.ok());
    }
    wall.Jump(0);
    CHECK(daemon.Terminate() == 0);
  }
  std::printf(
      "row 25: wall clock off by +1 h, -1 h, +10 y, -10 y: %u early and %u late expiries of %u leases; the brief ones, of "
      "%ld ms, ended within %.0f ms\n",
      early, late, leases, kBriefMicros / 1000, longest_ms);
  CHECK(early == 0);
  CHECK(late == 0);
  CHECK(LoggedHours(log).size() > kJumps.size());  // kvistd did see them all, and the time between
}
