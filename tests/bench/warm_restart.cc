#include "tests/bench/warm_restart.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/files.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/support/fd_store.h"
#include "tests/support/temp_dir.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kWarmChainChunks = 64;
constexpr uint32_t kWarmPagesPerChunk = 16;
constexpr uint64_t kWarmPageBytes = 64 << 10;
constexpr uint32_t kWarmChains = 8, kQuickChains = 1;  // 64 MiB each
constexpr double kWarmPatience = 60;                   // seconds

class WarmRestart {
 public:
  explicit WarmRestart(const Settings& settings)
      : chains_(settings.quick ? kQuickChains : kWarmChains),
        files_(settings.directory),
        manager_(dir_.path()),
        pages_(kWarmChainChunks * kWarmPagesPerChunk) {
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  absl::Status Run(Report* report) {
    KVIST_RETURN_IF_ERROR(files_.Create());
    KVIST_ASSIGN_OR_RETURN(memory_, EngineMemory::Create({.pages = kWarmChainChunks * kWarmPagesPerChunk,
                                                          .pages_per_chunk = kWarmPagesPerChunk,
                                                          .page_bytes = kWarmPageBytes}));
    KVIST_RETURN_IF_ERROR(Start());
    KVIST_RETURN_IF_ERROR(Fill());
    Kill();
    KVIST_ASSIGN_OR_RETURN(const Found kept, LoadAll());
    const double all = static_cast<double>(keys_.size()) * kWarmChainChunks;
    report->cases.push_back(
        {"chunks of a pool kept over kill -9", 100 * kept.chunks / all, "%", 100, Better::kHigher, std::nullopt});
    uint32_t durable = 0;
    if (const kvist::Status flushed = worker_.Flush(60'000'000, &durable); !flushed.ok())
      return absl::InternalError(absl::StrCat("a flush: ", flushed.message));
    Kill();
    manager_.Forget();
    KVIST_ASSIGN_OR_RETURN(const Found read, LoadAll());
    if (read.chunks < all)
      return absl::InternalError(absl::StrCat("only ", read.chunks, " of ", all, " chunks were on disk"));
    report->cases.push_back({absl::StrCat(keys_.size() * 64, " MiB loaded, kept; beside from disk"), kept.seconds, "s",
                             read.seconds, Better::kLower, std::nullopt});
    return absl::OkStatus();
  }

 private:
  struct Found {
    double chunks = 0;
    double seconds = 0;  // from the start of the process
  };

  absl::Status Start() {
    KVIST_ASSIGN_OR_RETURN(kvistd_, KvistdProcess::Start({"pool.bytes=1GiB", "pool.keep=always", "ssd.enabled=true",
                                                          absl::StrCat("ssd.path=", files_.path()), "ssd.capacity=2GiB",
                                                          "ssd.scrub_every=0s", "ssd.gate=false", "lease.share=1"},
                                                         manager_.Before()));
    KVIST_ASSIGN_OR_RETURN(scheduler_, memory_->Connect(kvistd_->socket(), KVIST_SCHEDULER));
    KVIST_ASSIGN_OR_RETURN(worker_, memory_->Connect(kvistd_->socket(), KVIST_WORKER));
    return absl::OkStatus();
  }

  void Kill() {
    kvistd_->Kill();
    manager_.Settle();
  }

  absl::Status Fill() {
    for (uint32_t chain = 0; chain < chains_; ++chain) {
      std::memset(memory_->Page(0, 0), static_cast<int>(chain + 1), pages_.size() * kWarmPageBytes);
      keys_.push_back(RandomKeys(random_, kWarmChainChunks));
      const kvist_result stored = worker_.Wait(worker_.Store(keys_.back(), 0, pages_), 10'000'000);
      if (stored.status != KVIST_OK || stored.chunks_copied != kWarmChainChunks)
        return absl::InternalError(absl::StrCat("a store of ", kWarmChainChunks, " chunks: ", kvist_error()));
    }
    return absl::OkStatus();
  }

  // Starts kvistd, and loads each chain as soon as all of it is found; what isn't after a while is lost.
  absl::StatusOr<Found> LoadAll() {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(Start());
    Found found;
    for (uint32_t chain = 0; chain < chains_; ++chain) {
      kvist::Hit hit = scheduler_.Lookup(keys_[chain], 10'000'000);
      while (hit.chunks < kWarmChainChunks && Now() - start < kWarmPatience) {
        hit = {};
        absl::SleepFor(absl::Milliseconds(1));
        hit = scheduler_.Lookup(keys_[chain], 10'000'000);
      }
      found.chunks += hit.chunks;
      std::memset(memory_->Page(0, 0), 0, pages_.size() * kWarmPageBytes);
      const kvist_result loaded = worker_.Wait(worker_.Load(hit.lease, 0, hit.chunks, pages_), 30'000'000);
      const std::byte wanted{static_cast<uint8_t>(chain + 1)};
      const size_t bytes = size_t{hit.chunks} * kWarmPagesPerChunk * kWarmPageBytes;
      if (loaded.status != KVIST_OK || memory_->Page(0, 0)[0] != wanted || memory_->Page(0, 0)[bytes - 1] != wanted)
        return absl::InternalError(absl::StrCat("a load after a kill: status ", loaded.status, ", ", kvist_error()));
    }
    found.seconds = Now() - start;
    return found;
  }

  const uint32_t chains_;
  Files files_;
  test::TempDir dir_;
  test::FdStore manager_;
  std::vector<uint32_t> pages_;
  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<KvistdProcess> kvistd_;
  kvist::Client scheduler_, worker_;
  std::mt19937_64 random_{1};
  std::vector<std::vector<kvist_key>> keys_;
};

}  // namespace

absl::Status MeasureWarmRestart(const Settings& settings, Report* report) { return WarmRestart(settings).Run(report); }

}  // namespace kvist::bench
