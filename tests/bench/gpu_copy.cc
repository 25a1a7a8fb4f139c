// Stores and loads of an engine on a GPU, through the whole stack (a kvistd process, CUDA IPC), beside one contiguous copy between pinned host
// memory and the same GPU in the engine's process. Pages are scattered, a page of a layer is one piece; the engine computes nothing meanwhile.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cuda/driver/driver.h"
#include "kvist/client.h"
#include "storage/base/status.h"
#include "storage/pool/slot_header.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"
#include "tests/support/test_gpu.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kGpuLayers = 8;
constexpr uint32_t kGpuPageTokens = 16;
constexpr uint32_t kGpuPagesPerChunk = 16;
constexpr int64_t kGpuTimeoutUs = 30'000'000;
constexpr double kGiB = 1 << 30;

class GpuCopyBench {
 public:
  // `settle`: until kvistd has touched and pinned its pool.
  static absl::StatusOr<std::unique_ptr<GpuCopyBench>> Create(uint64_t page_bytes, uint64_t batch_bytes,
                                                              absl::Duration settle, std::vector<std::string> kvistd) {
    auto bench = std::unique_ptr<GpuCopyBench>(new GpuCopyBench(page_bytes, batch_bytes));
    // Four batches: two that are loaded, and room for stores that evict what the last ones have left.
    const uint64_t pool = (4 * bench->bytes() + (uint64_t{256} << 20)) >> 20;
    for (std::string setting :
         {absl::StrCat("pool.bytes=", pool, "MiB"), std::string("pool.slab_bytes=64MiB"), std::string("ssd.enabled=false"),
          std::string("lease.share=1"), std::string("log.level=error")}) {
      kvistd.push_back(std::move(setting));
    }
    KVIST_ASSIGN_OR_RETURN(bench->daemon_, KvistdProcess::Start(kvistd));
    KVIST_RETURN_IF_ERROR(bench->Connect());
    absl::SleepFor(settle);
    return bench;
  }
  ~GpuCopyBench() {
    client_ = {};
    gpu_.Unpin(host_.data());
    gpu_.Free(device_);
    gpu_.Free(pages_);
    gpu_.End(up_);
    gpu_.End(down_);
  }

  uint32_t chunks() const { return chunks_; }
  uint64_t bytes() const { return uint64_t{chunks_} * kGpuPagesPerChunk * kGpuLayers * page_bytes_; }

  // Seconds of the product, of all chunks. A half uses the pages of its own.
  absl::StatusOr<double> Store() {
    keys_ = RandomKeys(random_, chunks_);
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(const kvist_op op, Begin(client_.Store(keys_, 0, table_)));
    KVIST_RETURN_IF_ERROR(End(op, chunks_));
    return Now() - start;
  }
  // Until the first `layers` layers are there.
  absl::StatusOr<double> Load(uint32_t layers = KVIST_ALL_LAYERS) {
    const kvist::Hit hit = client_.Lookup(keys_, kGpuTimeoutUs);
    if (hit.chunks != chunks_) return absl::InternalError(absl::StrCat("a lookup of stored chunks found ", hit.chunks));
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(const kvist_op op, Begin(client_.Load(hit.lease, 0, chunks_, table_)));
    if (layers == KVIST_ALL_LAYERS) {
      KVIST_RETURN_IF_ERROR(End(op, chunks_));
      return Now() - start;
    }
    const kvist_status first = client_.Wait(op, kGpuTimeoutUs, layers).status;
    const double there = Now();
    if (first == KVIST_PENDING) KVIST_RETURN_IF_ERROR(End(op, chunks_));
    return there - start;
  }
  // A load of half of the chunks, and a store of the pages of the others.
  absl::StatusOr<double> Both() {
    const uint32_t half = chunks_ / 2;
    const std::span<const uint32_t> table(table_);
    const kvist::Hit hit = client_.Lookup(keys_, kGpuTimeoutUs);
    if (hit.chunks != chunks_) return absl::InternalError(absl::StrCat("a lookup of stored chunks found ", hit.chunks));
    const std::vector<kvist_key> keys = RandomKeys(random_, half);
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(const kvist_op load,
                           Begin(client_.Load(hit.lease, 0, half, table.first(half * kGpuPagesPerChunk))));
    KVIST_ASSIGN_OR_RETURN(const kvist_op store,
                           Begin(client_.Store(keys, 0, table.subspan(half * kGpuPagesPerChunk, half * kGpuPagesPerChunk))));
    KVIST_RETURN_IF_ERROR(End(load, half));
    KVIST_RETURN_IF_ERROR(End(store, half));
    return Now() - start;
  }

  // Seconds of the limits: `size` bytes in one piece, or half of it each way at once.
  double Bare(bool store, uint64_t size) {
    const double start = Now();
    Enqueue(store, 0, size);
    gpu_.Synchronize(store ? down_ : up_);
    return Now() - start;
  }
  double BareBoth() {
    const double start = Now();
    Enqueue(false, 0, bytes() / 2);
    Enqueue(true, bytes() / 2, bytes() / 2);
    gpu_.Synchronize(up_);
    gpu_.Synchronize(down_);
    return Now() - start;
  }
  absl::StatusOr<double> CpuSeconds() const { return daemon_->CpuSeconds(); }

  // Whether the product copies at all what it is timed for.
  absl::Status CheckBytes() {
    std::vector<std::byte> content(bytes()), back(bytes());
    std::mt19937_64 random(5);
    for (size_t at = 0; at + 8 <= content.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(content.data() + at, &word, 8);
    }
    gpu_.Write(pages_, content.data(), content.size());
    KVIST_RETURN_IF_ERROR(Store().status());
    gpu_.Write(pages_, back.data(), back.size());
    KVIST_RETURN_IF_ERROR(Load().status());
    gpu_.Read(back.data(), pages_, back.size());
    if (back != content) return absl::DataLossError("pages came back with other bytes than were stored");
    return absl::OkStatus();
  }

 private:
  GpuCopyBench(uint64_t page_bytes, uint64_t batch_bytes) : page_bytes_(page_bytes) {
    const uint64_t chunk_bytes = page_bytes * kGpuPagesPerChunk * kGpuLayers;
    chunks_ = static_cast<uint32_t>(std::max<uint64_t>(2, batch_bytes / chunk_bytes)) & ~1u;
    host_.resize(bytes());
    gpu_.Pin(host_.data(), host_.size());
    device_ = gpu_.Allocate(bytes());
    pages_ = gpu_.Allocate(bytes());
    up_ = gpu_.MakeStream();
    down_ = gpu_.MakeStream();
    table_.resize(size_t{chunks_} * kGpuPagesPerChunk);
    std::iota(table_.begin(), table_.end(), 0u);
    std::ranges::shuffle(table_, random_);
  }

  absl::Status Connect() {
    kvist_options options{};
    options.struct_size = sizeof options;
    options.socket = daemon_->socket().c_str();
    options.instance = "bench";
    options.role = KVIST_WORKER;
    options.by_layer = 1;
    options.deadline_us = kGpuTimeoutUs;
    options.connect_timeout_us = kGpuTimeoutUs;
    kvist_space space{};
    options.space = &space;
    space.struct_size = sizeof space;
    space.model = "bench";
    space.kv_dtype = "bf16";
    space.layers = kGpuLayers;
    space.page_tokens = kGpuPageTokens;
    space.chunk_tokens = kGpuPageTokens * kGpuPagesPerChunk;
    space.segment_bytes = page_bytes_;
    space.segments = 1;
    std::vector<kvist_layer> layers;
    for (uint32_t layer = 0; layer < kGpuLayers; ++layer) layers.push_back({0, layer * table_.size() * page_bytes_});
    const kvist_cuda_region region{pages_, bytes()};
    kvist_memory memory{};
    memory.struct_size = sizeof memory;
    memory.cuda_regions = &region;
    memory.cuda_region_count = 1;
    memory.layers = layers.data();
    memory.layer_count = layers.size();
    memory.pages = static_cast<uint32_t>(table_.size());
    memory.page_stride = page_bytes_;
    memory.context = this;
    memory.write_page = [](void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
      auto* bench = static_cast<GpuCopyBench*>(context);
      bench->gpu_.Write(bench->pages_ + (layer * bench->table_.size() + page) * bench->page_bytes_, bytes, size);
      return 0;
    };
    options.memory = &memory;
    if (const kvist::Status status = kvist::Client::Connect(options, &client_); !status.ok())
      return absl::InternalError(absl::StrCat("kvist_connect: ", status.message));
    return absl::OkStatus();
  }

  static absl::StatusOr<kvist_op> Begin(kvist_op op) {
    if (op == 0) return absl::InternalError(absl::StrCat("a copy didn't begin: ", kvist_error()));
    return op;
  }
  absl::Status End(kvist_op op, uint32_t chunks) {
    const kvist_result result = client_.Wait(op, kGpuTimeoutUs);
    if (result.status == KVIST_OK && result.chunks_copied == chunks) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("a copy of ", chunks, " chunks copied ", result.chunks_copied, ": ",
                                            kvist_status_name(result.status), ": ", kvist_error()));
  }
  void Enqueue(bool store, uint64_t at, uint64_t size) {
    if (store) {
      gpu_.Copy(down_, host_.data() + at, device_ + at, size);
    } else {
      gpu_.Copy(up_, device_ + at, host_.data() + at, size);
    }
  }

  const uint64_t page_bytes_;
  uint32_t chunks_ = 0;
  test::TestGpu gpu_;
  std::vector<std::byte> host_;
  std::byte* device_ = nullptr;  // of the limits
  std::byte* pages_ = nullptr;   // the engine's: [layer][page]
  cuda::driver::Stream up_ = nullptr, down_ = nullptr;
  std::unique_ptr<KvistdProcess> daemon_;
  kvist::Client client_;
  std::mt19937_64 random_{1};
  std::vector<uint32_t> table_;
  std::vector<kvist_key> keys_;  // stored last
};

absl::Status MeasureGpuDirection(const Settings& settings, uint64_t page_kib, double goal, bool store, GpuCopyBench& bench,
                                 Report* report) {
  const std::string what = absl::StrCat(store ? "store " : "load ", page_kib, " KiB pages");
  const Slice product = [&] { return store ? bench.Store() : bench.Load(); };
  const Slice limit = [&]() -> absl::StatusOr<double> { return bench.Bare(store, bench.bytes()); };
  KVIST_RETURN_IF_ERROR(Alternate(absl::ZeroDuration(), product, limit).status());  // warm
  KVIST_ASSIGN_OR_RETURN(const double cpu_before, bench.CpuSeconds());
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.08 * settings.time, product, limit));
  KVIST_ASSIGN_OR_RETURN(const double cpu_after, bench.CpuSeconds());
  const Pair seconds = MedianByRatio(pairs);
  const double gib = static_cast<double>(bench.bytes()) / kGiB;
  report->cases.push_back({what + ", 256 MiB", gib / seconds.product * kGiB * 1e-9, "GB/s",
                           gib / seconds.limit * kGiB * 1e-9, Better::kHigher, goal});
  const double cpu_ms = (cpu_after - cpu_before) * 1e3 / (gib * static_cast<double>(pairs.size()));
  report->cases.push_back(
      {what + ", cpu", cpu_ms, "ms/GiB", 12, Better::kLower, page_kib >= 64 ? std::optional<double>(1) : std::nullopt});
  return absl::OkStatus();
}

absl::Status MeasureTogether(const Settings& settings, GpuCopyBench& bench, Report* report) {
  KVIST_RETURN_IF_ERROR(bench.Store().status());
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> both, Alternate(
                                                           0.05 * settings.time, [&] { return bench.Both(); },
                                                           [&]() -> absl::StatusOr<double> { return bench.BareBoth(); }));
  const Pair at_once = MedianByRatio(both);
  const double gb = static_cast<double>(bench.bytes()) * 1e-9;
  report->cases.push_back(
      {"store and load at once, 64 KiB pages", gb / at_once.product, "GB/s", gb / at_once.limit, Better::kHigher, 0.85});
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> layers,
                         Alternate(
                             0.05 * settings.time, [&] { return bench.Load(1); },
                             [&]() -> absl::StatusOr<double> { return bench.Bare(false, bench.bytes() / kGpuLayers); }));
  const Pair first = MedianByRatio(layers);
  report->cases.push_back(
      {"first layer of a load, 64 KiB pages", first.product * 1e6, "us", first.limit * 1e6, Better::kLower, 1.3});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGpuCopy(const Settings& settings, Report* report) {
  if (absl::Status status = cuda::driver::Driver::Load().status(); !status.ok())
    return absl::FailedPreconditionError(absl::StrCat("copy --device cuda needs a GPU: ", status.message()));
  const uint64_t batch_bytes = settings.quick ? uint64_t{16} << 20 : uint64_t{256} << 20;
  const absl::Duration settle = settings.quick ? absl::ZeroDuration() : absl::Seconds(2);
  constexpr std::pair<uint64_t, double> kCases[] = {{4, 0.6}, {16, 0.85}, {32, 0.95}, {64, 0.97}, {256, 0.97}};
  for (const auto& [page_kib, goal] : kCases) {
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<GpuCopyBench> bench,
                           GpuCopyBench::Create(page_kib << 10, batch_bytes, settle, settings.kvistd));
    KVIST_RETURN_IF_ERROR(bench->CheckBytes());
    for (const bool store : {true, false})
      KVIST_RETURN_IF_ERROR(MeasureGpuDirection(settings, page_kib, goal, store, *bench, report));
    if (page_kib == 64) KVIST_RETURN_IF_ERROR(MeasureTogether(settings, *bench, report));
  }
  return absl::OkStatus();
}

}  // namespace kvist::bench
