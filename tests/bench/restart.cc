// A kvistd with a million chunks on disk that was killed: when the first of them is loaded, and when all of them are found; with its
// catalog and without it, then beside reading the headers alone.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/format.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/files.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/raw_disk.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"
#include "tests/bench/warm_restart.h"

namespace kvist::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kChainChunks = 512;
constexpr uint64_t kChunks = 1'000'000;  // that figures are asked for
constexpr uint64_t kQuickChunks = 4 * kChainChunks;
constexpr uint32_t kChainsAtOnce = 32;       // stored between two flushes: what the pool has room for
constexpr uint64_t kRecordPageBytes = 4096;  // a record of two units: header and page
constexpr uint8_t kStored = 7;
constexpr double kAskedFirstSeconds = 1, kAskedAllSeconds = 5;  // from the issue
constexpr double kRestartPatience = 60;                         // seconds; nothing waits longer
constexpr uint32_t kRawDepths[] = {16, 64, 256};

class Restarting {
 public:
  explicit Restarting(const Settings& settings)
      : chunks_(settings.quick ? kQuickChunks : kChunks), files_(settings.directory) {}

  absl::Status Run(Report* report) {
    KVIST_RETURN_IF_ERROR(files_.Create());
    KVIST_ASSIGN_OR_RETURN(memory_, EngineMemory::Create({.page_bytes = kRecordPageBytes}));
    // All of it fits while it is filled: nothing goes before it is written.
    KVIST_RETURN_IF_ERROR(Start(chunks_ * 3 * kRecordPageBytes));
    KVIST_RETURN_IF_ERROR(Fill());
    kvistd_->Kill();
    KVIST_ASSIGN_OR_RETURN(const Times with_catalog, Restart());
    report->cases.push_back({"first hit after kill -9", with_catalog.first, "s", kAskedFirstSeconds, Better::kLower, 1});
    report->cases.push_back({"all found after kill -9", with_catalog.all, "s", kAskedAllSeconds, Better::kLower, 1});
    kvistd_->Kill();
    std::error_code error;
    fs::remove_all(fs::path(files_.path()) / "catalog", error);
    if (error) return ErrnoStatus("removing the catalog", error.value());
    KVIST_ASSIGN_OR_RETURN(const Times without, Restart());
    kvistd_->Kill();
    KVIST_ASSIGN_OR_RETURN(const double headers, ReadHeaders());
    report->cases.push_back({"all found without catalog", without.all, "s", headers, Better::kLower, 2});
    report->cases.push_back({"first hit without catalog", without.first, "s", headers, Better::kLower, std::nullopt});
    return absl::OkStatus();
  }

 private:
  struct Times {
    double first = 0, all = 0;  // seconds from the start of the process
  };

  absl::Status Start(uint64_t pool_bytes) {
    KVIST_ASSIGN_OR_RETURN(
        kvistd_,
        KvistdProcess::Start({absl::StrCat("pool.bytes=", std::max<uint64_t>(pool_bytes, 1 << 30)), "ssd.enabled=true",
                              absl::StrCat("ssd.path=", files_.path()),
                              absl::StrCat("ssd.capacity=", std::max<uint64_t>(chunks_ * 3 * kRecordPageBytes, 256 << 20)),
                              "ssd.scrub_every=0s"}));
    KVIST_ASSIGN_OR_RETURN(scheduler_, memory_->Connect(kvistd_->socket(), KVIST_SCHEDULER));
    KVIST_ASSIGN_OR_RETURN(worker_, memory_->Connect(kvistd_->socket(), KVIST_WORKER));
    return absl::OkStatus();
  }

  absl::Status Fill() {
    const std::vector<uint32_t> pages(kChainChunks, 0);
    std::memset(memory_->Page(0, 0), kStored, kRecordPageBytes);  // after the handshake, which has tried the page
    uint32_t durable = 0;
    while (chains_.size() * kChainChunks < chunks_) {
      const std::vector<kvist_key>& chain = chains_.emplace_back(RandomKeys(random_, kChainChunks));
      const kvist_op op = worker_.Store(chain, 0, pages);
      const kvist_result result = worker_.Wait(op, 10'000'000);
      if (op == 0 || result.status != KVIST_OK || result.chunks_copied != kChainChunks)
        return absl::InternalError(absl::StrCat("a store of ", kChainChunks, " chunks: ", kvist_error()));
      const bool last = chains_.size() * kChainChunks >= chunks_;
      if (chains_.size() % kChainsAtOnce != 0 && !last) continue;
      if (const kvist::Status flushed = worker_.Flush(60'000'000, &durable); !flushed.ok())
        return absl::InternalError(absl::StrCat("a flush: ", flushed.message));
    }
    if (durable < chains_.size() * kChainChunks)
      return absl::InternalError(
          absl::StrCat("only ", durable, " of ", chains_.size() * kChainChunks, " chunks are durable"));
    return absl::OkStatus();
  }

  // Starts kvistd and asks until it has what it had.
  absl::StatusOr<Times> Restart() {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(Start(0));
    Times times;
    std::memset(memory_->Page(0, 0), 0, kRecordPageBytes);
    for (size_t chain = 0; times.first == 0; chain = (chain + 1) % chains_.size()) {
      const kvist::Hit hit = scheduler_.Lookup(chains_[chain], 1'000'000);
      if (hit.chunks > 0) {
        const std::vector<uint32_t> page(1, 0);
        const kvist_result loaded = worker_.Wait(worker_.Load(hit.lease, 0, 1, page), 10'000'000);
        if (loaded.status != KVIST_OK || memory_->Page(0, 0)[kRecordPageBytes - 1] != std::byte{kStored})
          return absl::InternalError(
              absl::StrCat("the first hit wasn't loaded: status ", loaded.status, ", ", kvist_error()));
        times.first = Now() - start;
      }
      if (Now() - start > kRestartPatience) return absl::DeadlineExceededError("nothing was found");
    }
    for (size_t i = 0; i < chains_.size(); ++i) {
      for (uint32_t found = 0; found < kChainChunks;) {
        found = scheduler_.Lookup(chains_[i], 0).chunks;
        if (Now() - start > kRestartPatience)
          return absl::DeadlineExceededError(
              absl::StrCat("of chain ", i, " of ", chains_.size(), " only ", found, " chunks were found again"));
        if (found < kChainChunks) absl::SleepFor(absl::Milliseconds(1));
      }
    }
    times.all = Now() - start;
    return times;
  }

  // The limit: every header, in the order in which they lie, by bare direct I/O at the best depth.
  absl::StatusOr<double> ReadHeaders() {
    const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
        static_cast<std::byte*>(std::aligned_alloc(kRecordPageBytes, 256 * kRecordPageBytes)), &std::free);
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<RawDisk> disk, RawDisk::Create({buffer.get(), 256 * kRecordPageBytes}));
    double best = 0;
    for (const uint32_t depth : kRawDepths) {
      double seconds = 0;
      uint64_t left = chunks_;
      for (const auto& entry : fs::directory_iterator(files_.path())) {
        if (entry.path().filename().string().rfind("segment-", 0) != 0) continue;
        const UniqueFd file(::open(entry.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
        if (!file) return ErrnoStatus(absl::StrCat("opening ", entry.path().string()), errno);
        RawDisk::Job job{.fd = file.get(), .depth = depth};
        for (uint64_t at = kRecordPageBytes; at + 2 * kRecordPageBytes < entry.file_size() && left > 0;
             at += 2 * kRecordPageBytes, --left)
          job.extents.push_back({at, kRecordPageBytes});
        KVIST_ASSIGN_OR_RETURN(const double took, disk->Run(job));
        seconds += took;
      }
      if (best == 0 || seconds < best) best = seconds;
    }
    return best;
  }

  const uint64_t chunks_;
  Files files_;
  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<KvistdProcess> kvistd_;
  kvist::Client scheduler_, worker_;
  std::mt19937_64 random_{1};
  std::vector<std::vector<kvist_key>> chains_;
};

}  // namespace

absl::Status RunRestart(const Settings& settings, Report* report) {
  KVIST_RETURN_IF_ERROR(MeasureWarmRestart(settings, report));
  return Restarting(settings).Run(report);
}

}  // namespace kvist::bench
