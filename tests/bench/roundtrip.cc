// An empty request (a lookup of one key that isn't there) to a kvistd beside a futex ping-pong of two processes, each pair on the same
// processors: what the session, its ring and the core add to what waking and being woken costs.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/ping_pong.h"
#include "tests/bench/pinning.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

// Between two idle rounds: much longer than anybody spins.
constexpr absl::Duration kIdlePause = absl::Milliseconds(2);
constexpr int kIdleRounds = 16;    // of a slice
constexpr int kWarmRounds = 2000;  // of a slice; about a millisecond
constexpr size_t kTrials = 15;     // slices of each of two limits, of which the faster is taken
constexpr int kWarmUp = 200;       // rounds before it that are not measured
constexpr absl::Duration kSettled =
    absl::Milliseconds(500);  // past a kvistd's start: the pool is touched, the handshake over
// A process that is asked for nothing: this much of a core at most.
constexpr double kIdleShare = 0.01;

struct Placement {
  int client_cpu;
  int daemon_cpu;
};

// A kvistd as it is started by default but for a small pool, whose reactor is on one processor, and a session that asks it for nothing.
class EmptyRequests {
 public:
  static absl::StatusOr<std::unique_ptr<EmptyRequests>> Start(const EngineMemory& memory, int daemon_cpu) {
    auto requests = std::make_unique<EmptyRequests>();
    KVIST_ASSIGN_OR_RETURN(requests->daemon_,
                           KvistdProcess::Start({"pool.bytes=64MiB", absl::StrCat("session.reactor_cpu=", daemon_cpu)}));
    KVIST_ASSIGN_OR_RETURN(requests->client_, memory.Connect(requests->daemon_->socket(), KVIST_SCHEDULER));
    absl::SleepFor(kSettled);
    return requests;
  }

  absl::Status Round() {
    const kvist::Hit hit = client_.Lookup(key_, 0);
    if (hit.status != KVIST_OK || hit.chunks != 0)
      return absl::InternalError(absl::StrCat("an empty lookup: ", kvist_error()));
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<KvistdProcess> daemon_;
  kvist::Client client_;
  std::mt19937_64 random_{1};
  const std::vector<kvist_key> key_ = RandomKeys(random_, 1);
};

using Ask = std::function<absl::Status()>;

// Median seconds of a round, with a pause before each.
absl::StatusOr<double> IdleRounds(const Ask& round) {
  std::vector<double> seconds;
  for (int i = 0; i < kIdleRounds; ++i) {
    absl::SleepFor(kIdlePause);
    const double start = Now();
    KVIST_RETURN_IF_ERROR(round());
    seconds.push_back(Now() - start);
  }
  return Quantile(std::move(seconds), 0.5);
}

// The same, one round right after the other.
absl::StatusOr<double> WarmRounds(const Ask& round) {
  for (int i = 0; i < kWarmUp; ++i) KVIST_RETURN_IF_ERROR(round());
  std::vector<double> seconds;
  for (int i = 0; i < kWarmRounds; ++i) {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(round());
    seconds.push_back(Now() - start);
  }
  return Quantile(std::move(seconds), 0.5);
}

Ask RoundsOf(PingPong& limit) {
  return [&limit] {
    limit.Round();
    return absl::OkStatus();
  };
}

// The limit is the faster of two: nobody can say then that only the product chose its slices.
absl::StatusOr<std::unique_ptr<PingPong>> FasterPingPong(const std::string& name, int cpu, PingPong::Wait wait,
                                                         absl::StatusOr<double> (*measure)(const Ask&)) {
  auto ordinary = std::make_unique<PingPong>(cpu, wait, PingPong::Slices::kOrdinary);
  auto small = std::make_unique<PingPong>(cpu, wait, PingPong::Slices::kShort);
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(
                                                            absl::ZeroDuration(), [&] { return measure(RoundsOf(*small)); },
                                                            [&] { return measure(RoundsOf(*ordinary)); }, kTrials));
  const Pair middle = MedianByRatio(pairs);
  std::fprintf(stderr, "%s: a ping-pong takes %.2f us with ordinary slices, %.2f with short ones\n", name.c_str(),
               middle.limit * 1e6, middle.product * 1e6);
  return std::move(middle.product < middle.limit ? small : ordinary);
}

absl::Status MeasurePlacement(const std::string& name, Placement where, absl::Duration time, const EngineMemory& memory,
                              Report* report) {
  const bool same = where.client_cpu == where.daemon_cpu;
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<EmptyRequests> product, EmptyRequests::Start(memory, where.daemon_cpu));
  const Pinned pinned(where.client_cpu);
  const Ask ask = [&] { return product->Round(); };
  const auto measure = [&](const std::string& what, PingPong::Wait wait, absl::Duration how_long,
                           absl::StatusOr<double> (*rounds)(const Ask&), std::optional<double> goal) -> absl::Status {
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<PingPong> limit, FasterPingPong(what, where.daemon_cpu, wait, rounds));
    KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs,
                           Alternate(
                               how_long, [&] { return rounds(ask); }, [&] { return rounds(RoundsOf(*limit)); }));
    const Pair middle = MedianByRatio(pairs);
    report->cases.push_back({what, middle.product * 1e6, "us", middle.limit * 1e6, Better::kLower, goal});
    return absl::OkStatus();
  };
  KVIST_RETURN_IF_ERROR(measure(absl::StrCat("idle ", name), PingPong::Wait::kSleep, 0.75 * time, IdleRounds, 1.5));
  return measure(absl::StrCat("warm ", name), same ? PingPong::Wait::kSleep : PingPong::Wait::kSpinThenSleep, 0.25 * time,
                 WarmRounds, same ? std::nullopt : std::optional<double>(3));
}

// What a kvistd uses while a connected engine asks nothing.
absl::Status MeasureIdleDaemon(absl::Duration time, const EngineMemory& memory, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<KvistdProcess> kvistd, KvistdProcess::Start({"pool.bytes=64MiB"}));
  KVIST_ASSIGN_OR_RETURN(const kvist::Client client, memory.Connect(kvistd->socket(), KVIST_SCHEDULER));
  absl::SleepFor(kSettled);
  KVIST_ASSIGN_OR_RETURN(const double used_before, kvistd->CpuSeconds());
  const double start = Now();
  absl::SleepFor(time);
  KVIST_ASSIGN_OR_RETURN(const double used, kvistd->CpuSeconds());
  report->cases.push_back(
      {"idle daemon cpu", (used - used_before) / (Now() - start), "core", kIdleShare, Better::kLower, 1});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRoundtrip(const Settings& settings, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<EngineMemory> memory, EngineMemory::Create({.page_bytes = 4096}));
  const std::vector<int> cpus = UsableCpus();
  const absl::Duration idle_daemon =
      settings.quick ? absl::Milliseconds(100) : std::max(absl::Seconds(3), 0.15 * settings.time);
  const absl::Duration each = 0.42 * settings.time;
  KVIST_RETURN_IF_ERROR(MeasurePlacement("same core", {cpus[0], cpus[0]}, each, *memory, report));
  if (cpus.size() > 1) {
    KVIST_RETURN_IF_ERROR(MeasurePlacement("different cores", {cpus[0], cpus[1]}, each, *memory, report));
  } else {
    std::fprintf(stderr, "only one processor here: no figures for different cores\n");
  }
  return MeasureIdleDaemon(idle_daemon, *memory, report);
}

}  // namespace kvist::bench
