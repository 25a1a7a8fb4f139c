// An empty request (a lookup of one key that isn't there) beside a futex ping-pong of two threads, each pair on the same processors: what
// the session, its ring and the core add to what waking and being woken costs.
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/bench/daemon_under_test.h"
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
constexpr int kWarmUp = 200;       // rounds before it that are not measured
// A process that is asked for nothing: this much of a core at most.
constexpr double kIdleShare = 0.01;

struct Placement {
  int client_cpu;
  int daemon_cpu;
};

// A daemon whose reactor is on one processor, and a session that asks it for nothing.
class EmptyRequests {
 public:
  static absl::StatusOr<std::unique_ptr<EmptyRequests>> Start(const EngineMemory& memory, int daemon_cpu) {
    auto requests = std::make_unique<EmptyRequests>();
    daemon::Options options;
    options.pool.bytes = MiB(64);
    options.session.reactor_cpu = daemon_cpu;
    KVIST_ASSIGN_OR_RETURN(requests->daemon_, DaemonUnderTest::Start(options));
    KVIST_RETURN_IF_ERROR(requests->daemon_->AwaitTouched());
    KVIST_ASSIGN_OR_RETURN(requests->client_, memory.Connect(requests->daemon_->socket(), KVIST_SCHEDULER));
    return requests;
  }

  absl::Status Round() {
    const kvist::Hit hit = client_.Lookup(key_, 0);
    if (hit.status != KVIST_OK || hit.chunks != 0)
      return absl::InternalError(absl::StrCat("an empty lookup: ", kvist_error()));
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<DaemonUnderTest> daemon_;
  kvist::Client client_;
  std::mt19937_64 random_{1};
  const std::vector<kvist_key> key_ = RandomKeys(random_, 1);
};

// Median seconds of a round, with a pause before each.
template <class Round>
absl::StatusOr<double> IdleRounds(Round round) {
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
template <class Round>
absl::StatusOr<double> WarmRounds(Round round) {
  for (int i = 0; i < kWarmUp; ++i) KVIST_RETURN_IF_ERROR(round());
  std::vector<double> seconds;
  for (int i = 0; i < kWarmRounds; ++i) {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(round());
    seconds.push_back(Now() - start);
  }
  return Quantile(std::move(seconds), 0.5);
}

absl::Status MeasurePlacement(const std::string& name, Placement where, absl::Duration time, const EngineMemory& memory,
                              Report* report) {
  const bool same = where.client_cpu == where.daemon_cpu;
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<EmptyRequests> product, EmptyRequests::Start(memory, where.daemon_cpu));
  PingPong sleeping(where.daemon_cpu, PingPong::Wait::kSleep);
  PingPong warm(where.daemon_cpu, same ? PingPong::Wait::kSleep : PingPong::Wait::kSpinThenSleep);
  const Pinned pinned(where.client_cpu);
  const auto ask = [&] { return product->Round(); };
  const auto rounds_of = [](PingPong& limit) {
    return [&limit] {
      limit.Round();
      return absl::OkStatus();
    };
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> idle_pairs,
                         Alternate(
                             0.75 * time, [&] { return IdleRounds(ask); }, [&] { return IdleRounds(rounds_of(sleeping)); }));
  const Pair idle = MedianByRatio(idle_pairs);
  report->cases.push_back({absl::StrCat("idle ", name), idle.product * 1e6, "us", idle.limit * 1e6, Better::kLower, 1.5});
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> warm_pairs,
                         Alternate(
                             0.25 * time, [&] { return WarmRounds(ask); }, [&] { return WarmRounds(rounds_of(warm)); }));
  const Pair busy = MedianByRatio(warm_pairs);
  report->cases.push_back({absl::StrCat("warm ", name), busy.product * 1e6, "us", busy.limit * 1e6, Better::kLower,
                           same ? std::nullopt : std::optional<double>(3)});
  return absl::OkStatus();
}

// What a kvistd uses while a connected engine asks nothing.
absl::Status MeasureIdleDaemon(absl::Duration time, const EngineMemory& memory, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<KvistdProcess> kvistd, KvistdProcess::Start({"pool.bytes=64MiB"}));
  KVIST_ASSIGN_OR_RETURN(const kvist::Client client, memory.Connect(kvistd->socket(), KVIST_SCHEDULER));
  absl::SleepFor(absl::Milliseconds(500));  // past its start: the pool is touched, the handshake over
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
