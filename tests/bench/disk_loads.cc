#include "tests/bench/disk_loads.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/ssd_options.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/base/xxh3.h"
#include "storage/pool/pinned_region.h"
#include "storage/ssd/format.h"
#include "tests/bench/copy_loop.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/files.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/raw_disk.h"
#include "tests/bench/slices.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kChunkLayers = 64;
constexpr uint32_t kLoadChunks = 64;  // of a load; 2 MiB each
constexpr uint64_t kLayerBytes = uint64_t{32} << 10;
constexpr uint64_t kChunkBytes = kChunkLayers * kLayerBytes;
constexpr uint64_t kChainBytes = kLoadChunks * kChunkBytes;
constexpr uint32_t kChains = 12;                                   // that are loaded in turn
constexpr uint32_t kSlots = kLoadChunks + 2;                       // of DRAM: what is loaded takes the place of what was
constexpr uint64_t kSegmentBytes = uint64_t{256} << 20;            // what kvistd takes for a tier of
constexpr uint64_t kCapacity = daemon::kSegments * kSegmentBytes;  // so much, and what isn't used takes no room
constexpr uint64_t kRecordBytes = kChunkBytes + ssd::kUnit.value;
constexpr uint64_t kPatienceMicros = 60'000'000;

class DiskLoads {
 public:
  explicit DiskLoads(const Settings& settings) : chains_(settings.quick ? 4 : kChains), files_(settings.directory) {}

  absl::Status Open() {
    KVIST_RETURN_IF_ERROR(files_.Create());
    KVIST_ASSIGN_OR_RETURN(
        memory_, EngineMemory::Create(
                     {.layers = kChunkLayers, .pages = kLoadChunks, .pages_per_chunk = 1, .page_bytes = kLayerBytes}));
    KVIST_ASSIGN_OR_RETURN(
        kvistd_, KvistdProcess::Start({absl::StrCat("pool.bytes=", kSlots * kRecordBytes),
                                       absl::StrCat("pool.slab_bytes=", kRecordBytes), "lease.share=1.0", "ssd.enabled=true",
                                       "eviction.policy=lru", absl::StrCat("ssd.path=", files_.path()),
                                       absl::StrCat("ssd.capacity=", kCapacity), "ssd.scrub_every=0s"}));
    KVIST_ASSIGN_OR_RETURN(whole_, memory_->Connect(kvistd_->socket(), KVIST_SCHEDULER));
    KVIST_ASSIGN_OR_RETURN(by_layer_, memory_->Connect(kvistd_->socket(), KVIST_SCHEDULER, EngineMemory::Waits::kByLayer));
    KVIST_ASSIGN_OR_RETURN(worker_, memory_->Connect(kvistd_->socket(), KVIST_WORKER));
    for (uint32_t page = 0; page < kLoadChunks; ++page) pages_.push_back(page);
    KVIST_RETURN_IF_ERROR(Fill());
    KVIST_ASSIGN_OR_RETURN(buffer_,
                           pool::PinnedRegion::Create({.length = Bytes{kChainBytes}, .touch_threads = 0, .lock = false}));
    KVIST_ASSIGN_OR_RETURN(raw_, RawDisk::Create({buffer_->data(), buffer_->length().value}));
    // What filling has left in DRAM goes.
    for (uint32_t chain = 0; chain < chains_; ++chain) KVIST_RETURN_IF_ERROR(Load(whole_, KVIST_ALL_LAYERS, false).status());
    return FindBest();
  }

  // Seconds from the lookup of a chain that is on disk to its first layer in the pages, or to all of it.
  absl::StatusOr<double> LayerZero() { return Load(by_layer_, 1); }
  absl::StatusOr<double> Whole() { return Load(whole_, KVIST_ALL_LAYERS); }
  // Of bare reads of as much elsewhere: layer 0 of so many records, or all of them.
  absl::StatusOr<double> RawLayerZero() {
    RawDisk::Job job{.depth = kLoadChunks};
    for (uint64_t i = 0; i < kLoadChunks; ++i) job.extents.push_back({RecordAt(i) + ssd::kUnit.value, kLayerBytes});
    return RunRaw(std::move(job));
  }
  absl::StatusOr<double> RawWhole() { return RunRaw(WholeJob(best_)); }
  // The same while another thread, which waits for nothing, checks as much and copies it into the pages: a load can't do without either, and
  // where memory is what limits the disk, too, they take their share of it.
  absl::StatusOr<double> RawWholeBesideCopies() {
    const double start = Now();
    std::thread copier([this] {
      for (uint32_t chunk = 0; chunk < kLoadChunks; ++chunk) CheckAndCopy(chunk);
    });
    const absl::StatusOr<double> read = RunRaw(WholeJob(best_));
    copier.join();
    return read.ok() ? Now() - start : read;
  }

 private:
  // As it lies in the buffer.
  void CheckAndCopy(uint32_t chunk) {
    const std::byte* const at = buffer_->data() + chunk * kChunkBytes;
    uint64_t all = 0;
    std::vector<Move> moves;
    for (uint32_t layer = 0; layer < kChunkLayers; ++layer) {
      all ^= Xxh3OfFar({at + layer * kLayerBytes, kLayerBytes}, layer);
      moves.push_back({memory_->Page(layer, chunk), at + layer * kLayerBytes});
    }
    asm volatile("" : : "r"(all));  // it is wanted
    copy_.copy(moves, kLayerBytes);
  }
  struct How {
    uint64_t block;
    uint32_t depth;
  };

  absl::Status Fill() {
    std::mt19937_64 random(1);
    for (uint32_t chain = 0; chain < chains_; ++chain) {
      keys_.push_back(RandomKeys(random, kLoadChunks));
      for (uint32_t layer = 0; layer < kChunkLayers; ++layer) {
        for (uint32_t page = 0; page < kLoadChunks; ++page) {
          auto* words = reinterpret_cast<uint64_t*>(memory_->Page(layer, page));
          for (uint64_t i = 0; i < kLayerBytes / sizeof *words; ++i) words[i] = random();
        }
      }
      const kvist_result stored = worker_.Wait(worker_.Store(keys_.back(), 0, pages_), kPatienceMicros);
      if (stored.status != KVIST_OK || stored.chunks_copied != kLoadChunks)
        return absl::InternalError(absl::StrCat("a store of ", kLoadChunks, " chunks: ", kvist_error()));
      uint32_t durable = 0;
      if (const kvist::Status flushed = worker_.Flush(kPatienceMicros, &durable); !flushed.ok())
        return absl::InternalError(absl::StrCat("a flush: ", flushed.message));
    }
    // The segments that were filled to their ends, or nearly.
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files_.path())) {
      if (entry.path().filename().string().rfind("segment-", 0) == 0) names.insert(entry.path().string());
    }
    const uint64_t filled = std::max<uint64_t>(1, chains_ * kChainBytes / kSegmentBytes);
    for (const std::string& name : names) {
      if (segments_.size() == filled) break;
      UniqueFd& file = segments_.emplace_back(::open(name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      if (!file) return ErrnoStatus(absl::StrCat("opening ", name), errno);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Load(kvist::Client& scheduler, uint32_t layers, bool cold = true) {
    const std::vector<kvist_key>& keys = keys_[next_++ % keys_.size()];
    const double start = Now();
    const kvist::Hit hit = scheduler.Lookup(keys, kPatienceMicros);
    if (hit.chunks != kLoadChunks || (cold && hit.coming + (kSlots - kLoadChunks) < kLoadChunks)) {
      return absl::InternalError(absl::StrCat("of ", kLoadChunks, " chunks ", hit.chunks, " were found, ", hit.coming,
                                              " of them on disk: ", kvist_error()));
    }
    const kvist_op op = worker_.Load(hit.lease, 0, kLoadChunks, pages_);
    kvist_result loaded = worker_.Wait(op, kPatienceMicros, layers);
    const double seconds = Now() - start;
    if (loaded.status == KVIST_PENDING && loaded.layers >= layers) loaded = worker_.Wait(op, kPatienceMicros);
    if (loaded.status != KVIST_OK || loaded.chunks_copied != kLoadChunks)
      return absl::InternalError(absl::StrCat("a load from disk: status ", loaded.status, ", ", kvist_error()));
    return seconds;
  }

  // Records lie one behind the other, behind the segment's header; a record that names their space shifts those of the first by a unit.
  static uint64_t RecordAt(uint64_t i) { return 2 * ssd::kUnit.value + i * kRecordBytes; }
  RawDisk::Job WholeJob(How how) const {
    RawDisk::Job job{.depth = how.depth};
    const uint64_t from = RecordAt(0);
    for (uint64_t at = 0; at < kChainBytes; at += how.block) job.extents.push_back({from + at, how.block});
    return job;
  }
  // On a segment that was not just read.
  absl::StatusOr<double> RunRaw(RawDisk::Job job) {
    job.fd = segments_[(next_ * kChainBytes / kSegmentBytes + segments_.size() / 2) % segments_.size()].get();
    return raw_->Run(job);
  }
  absl::Status FindBest() {
    double least = 0;
    for (const uint64_t block : {KiB(256).value, MiB(1).value, MiB(2).value}) {
      for (const uint64_t in_flight : {MiB(2).value, MiB(4).value, MiB(8).value, MiB(16).value}) {
        const How how{block, static_cast<uint32_t>(std::max<uint64_t>(1, in_flight / block))};
        ++next_;
        KVIST_ASSIGN_OR_RETURN(const double seconds, RunRaw(WholeJob(how)));
        if (least == 0 || seconds < least) {
          least = seconds;
          best_ = how;
        }
      }
    }
    return absl::OkStatus();
  }

  const uint32_t chains_;
  Files files_;
  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<KvistdProcess> kvistd_;
  kvist::Client whole_, by_layer_, worker_;
  std::vector<uint32_t> pages_;
  std::vector<std::vector<kvist_key>> keys_;  // [chain]
  std::vector<UniqueFd> segments_;
  std::unique_ptr<pool::PinnedRegion> buffer_;
  std::unique_ptr<RawDisk> raw_;
  const PageKernel copy_ = NontemporalKernels().front();
  How best_{};
  uint64_t next_ = 0;
};

}  // namespace

absl::Status MeasureDiskLoads(const Settings& settings, absl::Duration time, size_t pairs_min, Report* report) {
  DiskLoads loads(settings);
  KVIST_RETURN_IF_ERROR(loads.Open());
  const auto rate = [](absl::StatusOr<double> seconds) -> absl::StatusOr<double> {
    if (!seconds.ok()) return seconds;
    return static_cast<double>(kChainBytes) * 1e-9 / *seconds;
  };
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> whole, Alternate(
                                                      time / 2, [&] { return rate(loads.Whole()); },
                                                      [&] { return rate(loads.RawWhole()); }, pairs_min));
  const Pair all = MedianByRatio(std::move(whole));
  report->cases.push_back({"load of 64 chunks from disk", all.product, "GB/s", all.limit, Better::kHigher, 0.9});
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> beside, Alternate(
                                                       time / 4, [&] { return rate(loads.RawWholeBesideCopies()); },
                                                       [&] { return rate(loads.RawWhole()); }, pairs_min));
  const Pair beside_copies = MedianByRatio(std::move(beside));
  report->cases.push_back({"bare reads beside checks and copies", beside_copies.product, "GB/s", beside_copies.limit,
                           Better::kHigher, std::nullopt});
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> layers,
                         Alternate(
                             time / 2, [&] { return loads.LayerZero(); }, [&] { return loads.RawLayerZero(); }, pairs_min));
  const Pair layer = MedianByRatio(std::move(layers));
  report->cases.push_back(
      {"wait for layer 0 of 64 chunks", layer.product * 1e3, "ms", layer.limit * 1e3, Better::kLower, 2});
  return absl::OkStatus();
}

}  // namespace kvist::bench
