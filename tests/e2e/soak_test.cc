// Row 41 of the fault matrix: a kvistd, from half an hour on with an SSD tier, under a low, mixed load of engines that load, store,
// pin, swap, flush, come and go, or are killed, while an operator clears and reloads, strangers connect, and kvistd itself is stopped
// for a moment now and then. At the end of each cycle nobody is there and all is cleared: what is left then must not grow.
// KVIST_SOAK_SECONDS says for how long; tests/soak.sh runs it.
#include <catch2/catch.hpp>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/killed.h"
#include "tests/support/temp_dir.h"

using kvist::test::AtRest;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

// What may be left to grow over the time that is fitted, noise and all: of resident memory what the allocators of threads that come
// and go may take; of descriptors and slots nothing.
constexpr double kRssGrowthMost = 4 << 20, kFdGrowthMost = 0.5, kPinnedGrowthMost = 0;
// A disk's catalog fills two memtables of 16 MiB and a cache of 4 MiB as it is written, over ten minutes or so at this load, and has
// 64 open tables and a few logs at most (storage/ssd/rocks_database.cc): so much more may be there, however long it takes. An engine
// comes every 0.1 s: after half an hour that is 2 KiB and 0.004 descriptors of each, so what one of them leaves behind is still seen.
constexpr double kDiskRss = 36 << 20, kDiskFds = 72;
constexpr int64_t kLong = 10'000'000;  // us
constexpr double kWarmUp = 0.25;       // of the time: first uses of everything
constexpr size_t kEngines = 4;
constexpr int kWithDisk = 1800;  // seconds

// A preempted prompt's pages, out and back in. Whether they hold what they held.
bool SwapsWell(FakeEngine* engine, std::span<const kvist_key> keys) {
  const auto chunks = static_cast<uint32_t>(keys.size());
  const std::vector<uint32_t> pages = engine->Pages(0, chunks);
  const size_t of_chunk = pages.size() / chunks;
  const auto pages_of = [&](uint32_t chunk) { return std::span(pages).subspan(chunk * of_chunk, of_chunk); };
  kvist::Client& worker = engine->worker(0);
  const kvist::Allocation room = worker.Allocate(chunks);
  if (!room) return true;  // no room, or no kvistd just now
  for (uint32_t k = 0; k < chunks; ++k) engine->Fill(0, keys[k], pages_of(k));
  if (worker.Wait(worker.SwapOut(room, 0, chunks, pages), kLong).status != KVIST_OK) return true;
  engine->Poison(0, pages);
  if (worker.Wait(worker.SwapIn(room, 0, chunks, pages), kLong).status != KVIST_OK) return true;
  for (uint32_t k = 0; k < chunks; ++k) {
    if (!engine->Check(0, keys[k], pages_of(k)).empty()) return false;
  }
  return true;
}

// What engines do beside loads and stores, now and then.
bool DoesMore(FakeEngine* engine, std::span<const kvist_key> keys, uint32_t what) {
  switch (what % 10) {
    case 0: engine->scheduler().Pin(keys); break;  // until a clear ends it
    case 1:
      if (engine->scheduler().Pin(keys) > 0) engine->scheduler().Unpin(keys);
      break;
    case 2: engine->scheduler().SessionEnded(keys); break;
    case 3: engine->scheduler().Flush(kLong); break;
    case 4:
    case 5: return SwapsWell(engine, keys.first(std::min<size_t>(keys.size(), 4)));
    default: break;
  }
  return true;
}

// An engine's life, a few requests at a time. Ends by leaving, or is killed by the test before.
int Live(const std::string& socket, uint32_t seed, milliseconds life) {
  std::mt19937 random(seed);
  const auto end = Clock::now() + life;
  {
    FakeEngine::Options options = FakeEngine::On(socket, "soak " + std::to_string(seed % 7));
    options.model = seed % 3 == 0 ? "a" : "b";
    options.pages = 256;
    options.segment_bytes = 2048;
    options.sealed = seed % 5 != 0;
    FakeEngine engine(options);
    std::string wrong;
    while (engine.status.ok() && Clock::now() < end) {
      const auto keys = engine.Keys(1000 * (random() % 30), 1 + random() % 32);
      engine.LoadAll(keys, &wrong);
      if (!wrong.empty()) return 4;
      engine.StoreAll(keys);
      if (!DoesMore(&engine, keys, random())) return 4;
      const kvist::Hit kept = engine.scheduler().Lookup(keys, 60'000'000);
      std::this_thread::sleep_for(milliseconds(random() % 20));  // a low rate is what is asked for
    }
    if (seed % 2 == 0) ::_exit(0);  // without a goodbye
  }
  return 0;
}

// Engines that come and go.
class Crowd {
 public:
  Crowd(const DaemonProcess& daemon, uint32_t seed) : daemon_(daemon), random_(seed) {}
  ~Crowd() { KillAll(); }

  // Reaps who has gone, kills one now and then, and fills up.
  void Turn() {
    for (std::optional<ChildProcess>& engine : engines_) {
      if (random_() % 50 == 0) Kill(engine);
      if (engine.has_value()) Reap(engine, engine->Ended());
      if (engine.has_value()) continue;
      const uint32_t seed = random_();
      const milliseconds life(100 + random_() % 1000);
      engine.emplace([&] { return Live(daemon_.socket(), seed, life); });
      ++lives_;
    }
  }
  void KillAll() {
    for (std::optional<ChildProcess>& engine : engines_) Kill(engine);
  }
  uint64_t lives() const { return lives_; }
  uint64_t killed() const { return killed_; }
  uint64_t wrong() const { return wrong_; }

 private:
  void Kill(std::optional<ChildProcess>& engine) {
    if (!engine.has_value()) return;
    ++killed_;
    Reap(engine, engine->Kill());
  }
  void Reap(std::optional<ChildProcess>& engine, std::optional<int> end) {
    if (!end.has_value()) return;
    wrong_ += *end == 4;
    engine.reset();
  }

  const DaemonProcess& daemon_;
  std::mt19937 random_;
  std::array<std::optional<ChildProcess>, kEngines> engines_;
  uint64_t lives_ = 0, killed_ = 0, wrong_ = 0;
};

// Connects, says something that is no Hello, and hangs up.
void Stranger(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) (void)::send(fd, "hello?", 6, MSG_NOSIGNAL);
  ::close(fd);
}

struct Sample {  // when nobody is there
  double seconds, rss, fds, pinned;
};

// The slope of the line through the samples by least squares, a second.
double Slope(const std::vector<Sample>& samples, double Sample::*value) {
  double t = 0, v = 0;
  for (const Sample& s : samples) {
    t += s.seconds;
    v += s.*value;
  }
  t /= static_cast<double>(samples.size());
  v /= static_cast<double>(samples.size());
  double above = 0, below = 0;
  for (const Sample& s : samples) {
    above += (s.seconds - t) * (s.*value - v);
    below += (s.seconds - t) * (s.seconds - t);
  }
  return below == 0 ? 0 : above / below;
}

}  // namespace

TEST_CASE("Row 41: what kvistd holds when nobody is there doesn't grow") {
  const int seconds = Campaign("KVIST_SOAK_SECONDS", 20, 200);
  const auto cycle = milliseconds(std::clamp(seconds * 1000 / 40, 250, 5000));
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  TempDir dir;
  const std::string config = dir.path() + "/kvistd.toml";
  const auto configure = [&](uint32_t lease) { std::ofstream(config) << "[lease]\nmax = \"" << lease << "s\"\n"; };
  configure(60);
  std::vector<std::string> settings{"pool.bytes=64MiB", "log.level=error"};
  const bool disk = seconds >= kWithDisk;
  const double rss_allowed = kRssGrowthMost + (disk ? kDiskRss : 0), fds_allowed = kFdGrowthMost + (disk ? kDiskFds : 0);
  if (disk) settings.insert(settings.end(), {"ssd.enabled=true", "ssd.capacity=256MiB", "ssd.path=" + dir.path() + "/ssd"});
  DaemonProcess daemon(dir.path(), settings, config);
  REQUIRE(Eventually([&] {
    const auto pool = StatusOf(daemon)["pool"];
    return pool["touched_bytes"] == pool["capacity_bytes"];
  }));
  Crowd crowd(daemon, random());
  std::vector<Sample> samples;
  uint64_t clears = 0, reloads = 0, strangers = 0, stops = 0;
  double rss_most = 0;
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::seconds(seconds);
  while (Clock::now() < end) {
    const auto quiet = Clock::now() + cycle;
    auto next_action = Clock::now();
    while (Clock::now() < quiet) {
      crowd.Turn();
      if (Clock::now() >= next_action) {
        next_action = Clock::now() + cycle / 5;
        switch (random() % 5) {
          case 0:
            Ctl(daemon, {"clear", "--yes"});
            ++clears;
            break;
          case 1: {
            const auto spaces = StatusOf(daemon)["spaces"];
            if (spaces.empty()) break;
            Ctl(daemon, {"clear", "--yes", "--space", spaces[random() % spaces.size()]["digest"]});
            ++clears;
            break;
          }
          case 2:
            configure(1 + random() % 60);
            Ctl(daemon, {"reload"});
            ++reloads;
            break;
          case 3:
            daemon.Signal(SIGSTOP);
            std::this_thread::sleep_for(milliseconds(1 + random() % 100));
            daemon.Signal(SIGCONT);
            ++stops;
            break;
          default: Stranger(daemon.socket()); ++strangers;
        }
        rss_most = std::max(rss_most, static_cast<double>(daemon.ResidentBytes()));
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    crowd.KillAll();
    nlohmann::json status;
    const bool rests = Eventually([&] {
      Ctl(daemon, {"clear", "--yes"});
      status = StatusOf(daemon);
      return status["sessions"] == 0 && AtRest(status) && status["pool"]["used_bytes"] == 0;
    });
    CHECK(rests);
    REQUIRE(!daemon.Ended().has_value());
    const size_t fds = kvist::test::FdsAtRest(daemon);  // kvistctl's own connection may be closing yet
    samples.push_back({std::chrono::duration<double>(Clock::now() - begin).count(),
                       static_cast<double>(daemon.ResidentBytes()), static_cast<double>(fds),
                       status["pool"]["used_bytes"].get<double>()});
    if (rests == false) break;
  }
  const auto status = StatusOf(daemon);
  CHECK(daemon.Terminate() == 0);

  const double warm = samples.back().seconds * kWarmUp;
  std::erase_if(samples, [&](const Sample& s) { return s.seconds < warm; });
  REQUIRE(samples.size() >= 3);
  const double fitted = samples.back().seconds - samples.front().seconds;
  const double rss = Slope(samples, &Sample::rss), fd = Slope(samples, &Sample::fds),
               pinned = Slope(samples, &Sample::pinned);
  const bool passed = rss * fitted <= rss_allowed && fd * fitted <= fds_allowed && pinned * fitted <= kPinnedGrowthMost &&
                      crowd.wrong() == 0;
  std::printf(
      "row 41: %d s: %lu engines came, %lu of them were killed, %lu clears, %lu reloads, %lu strangers, %lu stops, %lu "
      "lookups; fitted over %zu rests in %.0f s: RSS slope %.0f KiB/h (%.0f KiB in all, at most %.0f), fd slope %.2f/h, "
      "pinned slope %.0f bytes/h; RSS at rest %.1f MiB, at most %.1f MiB; wrong prompts %lu\n",
      seconds, crowd.lives(), crowd.killed(), clears, reloads, strangers, stops, status["lookups"].get<uint64_t>(),
      samples.size(), fitted, rss * 3600 / 1024, rss * fitted / 1024, rss_allowed / 1024, fd * 3600, pinned * 3600,
      samples.back().rss / (1 << 20), rss_most / (1 << 20), crowd.wrong());
  const nlohmann::json summary{{"row", 41},
                               {"seconds", seconds},
                               {"engines", crowd.lives()},
                               {"killed", crowd.killed()},
                               {"rss_bytes_per_hour", rss * 3600},
                               {"fds_per_hour", fd * 3600},
                               {"pinned_bytes_per_hour", pinned * 3600},
                               {"wrong_prompts", crowd.wrong()},
                               {"passed", passed}};
  std::printf("soak: %s\n", summary.dump().c_str());
  if (!passed) {
    for (const Sample& s : samples) {
      std::printf("  at %.0f s: %.1f MiB, %.0f descriptors, %.0f bytes of slots\n", s.seconds, s.rss / (1 << 20), s.fds,
                  s.pinned);
    }
  }
  CHECK(passed);
}
