// A clear of a million chunks while an engine asks a thousand times a second: how long its round trips are beside a bare futex's
// between the same processors, and how long the clear is beside one that nobody disturbs.
//
// What is asked for is one key that isn't there, as in `roundtrip`; the futex is asked at the same pace, so that both find their
// other side asleep as often. Latencies of all slices count together: one clear has some hundred of them, too few for a p99.
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "tests/bench/full_index.h"
#include "tests/bench/ping_pong.h"
#include "tests/bench/pinning.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr int64_t kPeriodNanos = 1'000'000;  // 1,000 round trips a second
constexpr int kFutexRounds = 400;            // of a slice; about as many as round trips during a clear
constexpr double kAskedMicros = 50;          // above the futex
constexpr double kAskedSlower = 5;           // the clear under load beside the clear alone
constexpr double kClearSecondsMax = 60;

// Waits for its turns, a period apart; one that comes late has its turn at once.
class Pace {
 public:
  void Await() {
    next_ = std::max(next_ + kPeriodNanos, MonotonicNanos());
    const timespec until{.tv_sec = next_ / 1'000'000'000, .tv_nsec = next_ % 1'000'000'000};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {}
  }

 private:
  int64_t next_ = MonotonicNanos();
};

class Clears {
 public:
  Clears(FullIndex* index, uint64_t chunks) : index_(*index), chunks_(chunks) {}

  // Fills the index and clears it; seconds of the clear. At each millisecond of it `meanwhile` runs.
  template <class Meanwhile>
  absl::StatusOr<double> Run(Meanwhile meanwhile) {
    KVIST_RETURN_IF_ERROR(index_.Fill(chunks_));
    rpc::NodeControl& node = index_.daemon().node();
    const auto soon = [] { return MonotonicNow() + absl::Seconds(10); };
    Pace pace;
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(rpc::JobStatus job, node.Clear({}, "", soon()));
    while (job.running()) {
      if (Now() - start > kClearSecondsMax) return absl::DeadlineExceededError("a clear that never ends");
      pace.Await();
      KVIST_RETURN_IF_ERROR(meanwhile());
      KVIST_ASSIGN_OR_RETURN(job, node.Job(job.id, soon()));
    }
    const double seconds = Now() - start;
    if (job.chunks < chunks_)
      return absl::InternalError(absl::StrCat("a clear freed ", job.chunks, " of ", chunks_, " chunks"));
    return seconds;
  }

 private:
  FullIndex& index_;
  const uint64_t chunks_;
};

}  // namespace

absl::Status RunClear(const Settings& settings, Report* report) {
  const std::vector<int> cpus = UsableCpus();
  const int client_cpu = cpus[0], daemon_cpu = cpus[cpus.size() > 1 ? 1 : 0];
  const uint64_t chunks = settings.quick ? FullIndex::kQuickChunks : FullIndex::kChunks;
  PingPong futex(daemon_cpu, PingPong::Wait::kSleep,
                 PingPong::Slices::kShort);  // first: a fork makes its parent's next writes slow
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<FullIndex> index, FullIndex::Create(chunks, daemon_cpu));
  const Pinned pinned(client_cpu);
  Clears clears(index.get(), chunks);
  std::mt19937_64 random(3);
  const std::vector<kvist_key> unknown = RandomKeys(random, 1);

  std::vector<double> round_trips, futex_rounds;  // seconds of each
  const Slice loaded = [&] {
    return clears.Run([&]() -> absl::Status {
      const double start = Now();
      const kvist::Hit hit = index->scheduler().Lookup(unknown, 0);
      round_trips.push_back(Now() - start);
      if (hit.status != KVIST_OK || hit.chunks != 0)
        return absl::InternalError(absl::StrCat("an empty lookup: ", kvist_error()));
      return absl::OkStatus();
    });
  };
  const Slice alone = [&]() -> absl::StatusOr<double> {
    Pace pace;
    for (int i = 0; i < kFutexRounds; ++i) {
      pace.Await();
      const double start = Now();
      futex.Round();
      futex_rounds.push_back(Now() - start);
    }
    return clears.Run([] { return absl::OkStatus(); });
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(settings.time, loaded, alone));
  const Pair middle = MedianByRatio(pairs);
  report->cases.push_back({"round trip during a clear, p99", Quantile(round_trips, 0.99) * 1e6, "us",
                           Quantile(futex_rounds, 0.99) * 1e6 + kAskedMicros, Better::kLower, 1});
  report->cases.push_back({"round trip during a clear, p50", Quantile(round_trips, 0.5) * 1e6, "us",
                           Quantile(futex_rounds, 0.5) * 1e6, Better::kLower, std::nullopt});
  report->cases.push_back({"clear of 1 M at 1,000 round trips a second", middle.product * 1e3, "ms", middle.limit * 1e3,
                           Better::kLower, kAskedSlower});
  return absl::OkStatus();
}

}  // namespace kvist::bench
