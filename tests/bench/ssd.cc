// What the SSD tier costs beside bare loops on other parts of the same files: the lower half of each file is a segment of the product,
// the upper one is the loop's. All of both is written once before anything is measured, so that no write finds fresh blocks.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/pool/pinned_region.h"
#include "storage/ssd/drive.h"
#include "storage/ssd/probe.h"
#include "storage/ssd/segment_header.h"
#include "tests/bench/disk_loads.h"
#include "tests/bench/files.h"
#include "tests/bench/raw_disk.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kFiles = 4;
constexpr uint32_t kShardLayers = 64;
constexpr uint32_t kLayerChunks = 64;  // whose layer 0 is waited for
constexpr size_t kPairsMin = 9;

// Processor seconds of this process so far, io_uring's workers included.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Measured {
  double bytes_per_second = 0;
  double cpu_per_gb = 0;
};

class SsdBench {
 public:
  explicit SsdBench(const Settings& settings)
      : quick_(settings.quick),
        slice_(quick_ ? MiB(32) : MiB(256)),
        half_(slice_ + slice_ / 16),
        files_(settings.directory) {}

  absl::Status Open();
  // A slice of so large shards.
  absl::StatusOr<Measured> Write(Bytes payload);
  absl::StatusOr<Measured> Read(Bytes payload);
  // The same by the loop; with checksums of runs of so many bytes when it isn't none.
  absl::StatusOr<Measured> Raw(bool write, uint64_t checksum_bytes);
  // Seconds until layer 0 of kLayerChunks shards of 2 MiB is there; and of bare reads of as many, as large runs.
  absl::StatusOr<double> LayerZero();
  absl::StatusOr<double> RawLayerZero();
  // Microseconds: of the header alone, and of the checksums of its 2 MiB.
  Pair Seal();
  std::string how() const;

 private:
  struct Durable {
    uint64_t n;
    ssd::Place place;
    uint32_t units;
    Bytes payload;
  };
  struct Best {  // of the loop
    uint64_t block = 0;
    uint32_t depth = 0;
  };
  static ssd::RecordHeader HeaderOf(uint64_t n, Bytes payload);
  std::byte* Slot(uint64_t i, Bytes payload) const { return memory_->data() + i * (payload + ssd::kUnit).value; }
  absl::StatusOr<double> RunRaw(bool write, Best how, uint32_t file, Bytes bytes, uint64_t checksum_bytes = 0);
  absl::Status FindBest(bool write, Best* best);
  void Forget(size_t keep);
  absl::Status ReadSome(uint64_t count, Bytes payload, ssd::Reader::Order order, double* layer_zero);

  const bool quick_;
  const Bytes slice_;
  const Bytes half_;
  Files files_;
  std::unique_ptr<pool::PinnedRegion> memory_;
  std::unique_ptr<ssd::Drive> drive_;
  std::unique_ptr<RawDisk> raw_;
  UniqueFd fds_[kFiles];
  std::deque<Durable> durable_;
  uint64_t sequence_ = 0;
  uint32_t next_file_ = 0;
  Best best_write_;
  Best best_read_;
  Bytes sync_bytes_ = ssd::Writer::Options{}.sync_bytes;
};

ssd::RecordHeader SsdBench::HeaderOf(uint64_t n, Bytes payload) {
  ssd::RecordHeader header{};
  header.sequence = n;
  header.kind = ssd::RecordKind::kShard;
  header.order = ssd::SlotOrder::kLayerMajor;
  header.shards = 1;
  std::memcpy(header.key.bytes.data(), &n, sizeof n);
  header.layers = header.runs = kShardLayers;
  header.layer_bytes = payload.value / kShardLayers;
  header.payload_bytes = header.raw_bytes = payload.value;
  return header;
}

absl::Status SsdBench::Open() {
  KVIST_RETURN_IF_ERROR(files_.Create());
  const Bytes file_bytes = half_ * 2;
  KVIST_ASSIGN_OR_RETURN(memory_,
                         pool::PinnedRegion::Create({.length = half_ + slice_ / 16, .touch_threads = 0, .lock = false}));
  uint64_t state = 1;
  for (uint64_t i = 0; i < memory_->length().value / 8; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    reinterpret_cast<uint64_t*>(memory_->data())[i] = state ^ (state >> 29);
  }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<ssd::Device> device,
                         ssd::OpenDevice({.directory = files_.path(), .segment_bytes = file_bytes}));
  for (const std::string& warning : device->report().warnings)
    std::fprintf(stderr, "kvist-bench ssd: %s\n", warning.c_str());
  KVIST_RETURN_IF_ERROR(device->Register({memory_->data(), memory_->length().value}));
  KVIST_ASSIGN_OR_RETURN(raw_, RawDisk::Create({memory_->data(), memory_->length().value}));
  for (uint32_t i = 0; i < kFiles; ++i) {
    const uint32_t segment = i * ssd::kDevicesMax;
    device->Submit({.kind = ssd::Io::Kind::kAllocate, .segment = segment});
    std::vector<ssd::Completion> ended;
    while (ended.empty()) device->Wait(absl::InfiniteFuture(), &ended);
    if (ended[0].error != 0) return ErrnoStatus(absl::StrCat("allocating ", file_bytes.value, " bytes"), ended[0].error);
    const std::string path = files_.path() + "/" + ssd::SegmentFileName(segment);
    fds_[i] = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC | (device->report().direct ? O_DIRECT : 0)));
    if (!fds_[i]) return ErrnoStatus(path, errno);
    RawDisk::Job fill{.fd = fds_[i].get(), .write = true, .depth = 8, .sync_bytes = file_bytes.value};
    for (uint64_t at = 0; at < file_bytes.value; at += MiB(1).value)
      fill.extents.push_back({at, std::min(MiB(1).value, file_bytes.value - at)});
    KVIST_RETURN_IF_ERROR(raw_->Run(fill).status());
  }
  KVIST_ASSIGN_OR_RETURN(const ssd::ProbeResult probe, ssd::Probe(device.get(), half_, {.segment = 0, .may_write = true}));
  const auto units = static_cast<uint32_t>(half_ / ssd::kUnit);
  drive_ = std::make_unique<ssd::Drive>(std::move(device),
                                        ssd::Drive::Options{.segments = {.device = 0, .segments = kFiles, .units = units},
                                                            .queue = probe.queue,
                                                            .writer = {.store = {}, .sync_bytes = sync_bytes_},
                                                            .reader = {}});
  KVIST_RETURN_IF_ERROR(FindBest(true, &best_write_));
  return FindBest(false, &best_read_);
}

std::string SsdBench::how() const {
  return absl::StrCat(drive_->device().report().how, "; in flight: reads ",
                      drive_->queue().options().read_budget.value >> 10, " KiB, writes ",
                      drive_->queue().options().write_budget.value >> 10, " KiB; the loop: reads ", best_read_.depth, " x ",
                      best_read_.block >> 10, " KiB, writes ", best_write_.depth, " x ", best_write_.block >> 10, " KiB");
}

absl::StatusOr<double> SsdBench::RunRaw(bool write, Best how, uint32_t file, Bytes bytes, uint64_t checksum_bytes) {
  RawDisk::Job job{.fd = fds_[file].get(),
                   .write = write,
                   .depth = how.depth,
                   .checksum_bytes = checksum_bytes,
                   .sync_bytes = write ? sync_bytes_.value : 0};
  for (uint64_t at = 0; at < bytes.value; at += how.block) job.extents.push_back({half_.value + at, how.block});
  return raw_->Run(job);
}

// The loop with the sizes and depths that are the fastest here.
absl::Status SsdBench::FindBest(bool write, Best* best) {
  double least = 0;
  for (const uint64_t block : {KiB(512).value, MiB(1).value, MiB(2).value}) {
    for (const uint64_t in_flight : {MiB(2).value, MiB(4).value, MiB(8).value, MiB(16).value}) {
      const Best how{block, static_cast<uint32_t>(in_flight / block)};
      KVIST_ASSIGN_OR_RETURN(const double seconds, RunRaw(write, how, next_file_++ % kFiles, slice_ / 2));
      if (least == 0 || seconds < least) {
        least = seconds;
        *best = how;
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Measured> SsdBench::Raw(bool write, uint64_t checksum_bytes) {
  const double cpu = CpuSeconds();
  KVIST_ASSIGN_OR_RETURN(const double seconds,
                         RunRaw(write, write ? best_write_ : best_read_, next_file_++ % kFiles, slice_, checksum_bytes));
  const auto bytes = static_cast<double>(slice_.value);
  return Measured{bytes / seconds, (CpuSeconds() - cpu) / (bytes * 1e-9)};
}

// All records but the last `keep`; segments that hold nothing else are free again.
void SsdBench::Forget(size_t keep) {
  while (durable_.size() > keep) {
    drive_->segments().Kill(durable_.front().place, durable_.front().units);
    durable_.pop_front();
  }
  for (const uint32_t segment : drive_->segments().Candidates(kFiles)) {
    if (drive_->segments().live_units(segment) == 0) drive_->segments().Release(segment);
  }
}

absl::StatusOr<Measured> SsdBench::Write(Bytes payload) {
  const uint64_t count = slice_ / payload;
  Forget(0);
  const double cpu = CpuSeconds();
  const double began = Now();
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t n = ++sequence_;
    KVIST_CHECK(drive_->writer().Write({n, Slot(i, payload), HeaderOf(n, payload)}));
  }
  drive_->writer().Flush();
  uint64_t ended = 0;
  while (ended < count) {
    drive_->Turn(MonotonicNow(), absl::InfiniteFuture());
    for (const ssd::Writer::Outcome& outcome : drive_->writer().TakeOutcomes()) {
      if (outcome.error != 0) return ErrnoStatus("writing a shard", outcome.error);
      durable_.push_back({outcome.ticket, outcome.place, outcome.units, payload});
      ++ended;
    }
    if (drive_->writer().starved()) return absl::InternalError("no segment is free");
  }
  const auto bytes = static_cast<double>((payload * count).value);
  return Measured{bytes / (Now() - began), (CpuSeconds() - cpu) / (bytes * 1e-9)};
}

// Reads the last `count` shards; when layer 0 of all of them was there.
absl::Status SsdBench::ReadSome(uint64_t count, Bytes payload, ssd::Reader::Order order, double* layer_zero) {
  KVIST_CHECK(durable_.size() >= count && durable_.back().payload == payload);
  const double began = Now();
  std::vector<ssd::Reader::Shard> shards;
  for (uint64_t i = 0; i < count; ++i) {
    const Durable& of = durable_[durable_.size() - count + i];
    const ssd::RecordHeader header = HeaderOf(of.n, payload);
    shards.push_back({.ticket = i,  // not of.n: shards become durable in another order than they were written in
                      .slot = Slot(i, payload),
                      .place = of.place,
                      .identity = {header.space, header.key, {}, {}},
                      .runs = kShardLayers,
                      .run_bytes = {header.layer_bytes}});
  }
  drive_->reader().Read(shards, order);
  uint64_t ended = 0;
  uint64_t with_layer_zero = 0;
  std::vector<bool> has(count);
  while (ended < count) {
    drive_->Turn(MonotonicNow(), absl::InfiniteFuture());
    for (const ssd::Reader::Progress& progress : drive_->reader().TakeProgress()) {
      const bool good = progress.error == 0 && progress.verdict == ssd::Verdict::kGood;
      if (!good)
        return absl::DataLossError(
            absl::StrCat("reading a shard: ", ssd::NameOf(progress.verdict), ", errno ", progress.error));
      const uint64_t i = progress.ticket;
      if (progress.runs > 0 && !has[i]) {
        has[i] = true;
        if (++with_layer_zero == count) *layer_zero = Now() - began;
      }
      ended += progress.ended;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Measured> SsdBench::Read(Bytes payload) {
  const uint64_t count = slice_ / payload;
  const double cpu = CpuSeconds();
  const double began = Now();
  double ignored = 0;
  KVIST_RETURN_IF_ERROR(ReadSome(count, payload, ssd::Reader::Order::kWhole, &ignored));
  const auto bytes = static_cast<double>((payload * count).value);
  return Measured{bytes / (Now() - began), (CpuSeconds() - cpu) / (bytes * 1e-9)};
}

absl::StatusOr<double> SsdBench::LayerZero() {
  double seconds = 0;
  KVIST_RETURN_IF_ERROR(
      ReadSome(std::min<uint64_t>(kLayerChunks, slice_ / MiB(2)), MiB(2), ssd::Reader::Order::kByLayer, &seconds));
  return seconds;
}

absl::StatusOr<double> SsdBench::RawLayerZero() {
  RawDisk::Job job{.fd = fds_[next_file_++ % kFiles].get(), .depth = kLayerChunks};
  for (uint64_t i = 0; i < std::min<uint64_t>(kLayerChunks, slice_ / MiB(2)); ++i)
    job.extents.push_back({half_.value + i * (MiB(2) + ssd::kUnit).value + ssd::kUnit.value, MiB(2).value / kShardLayers});
  return raw_->Run(job);
}

Pair SsdBench::Seal() {
  ssd::Sealer sealer;
  const ssd::SegmentHeader segment = ssd::MakeSegmentHeader({}, 0, 1 << 20, 1, ssd::DrawSecret());
  const int rounds = quick_ ? 100 : 20000;
  ssd::SealRecord(memory_->data(), HeaderOf(1, MiB(2)), segment, {0, 1}, ssd::Checksums::kCompute, &sealer);
  const auto timed = [&](int times, auto work) {
    const double began = Now();
    for (int i = 0; i < times; ++i) work();
    return (Now() - began) * 1e6 / times;
  };
  const double seal = timed(rounds, [&] {
    ssd::SealRecord(memory_->data(), HeaderOf(1, MiB(2)), segment, {0, 1}, ssd::Checksums::kKeep, &sealer);
  });
  uint64_t i = 0;
  uint64_t matching = 0;
  const double checksums = timed(rounds / 10, [&] {
    const std::byte* slot = Slot(i++ % (slice_ / MiB(2)), MiB(2));
    for (uint32_t run = 0; run < kShardLayers; ++run) matching += ssd::RunMatches(slot, HeaderOf(1, MiB(2)), run);
  });
  KVIST_CHECK(matching > 0);  // those of the first slot, which was sealed
  return {seal, checksums};
}

// Rate beside the loop's, and processor time beside twice the loop's and the checksums': what these cost is what they add to the loop,
// which has the bytes as warm or cold as the product does.
absl::Status Compare(SsdBench* bench, bool write, Bytes payload, absl::Duration time, size_t pairs_min, Report* report) {
  std::vector<double> product_cpu;
  std::vector<double> limit_cpu;
  const auto product = [&]() -> absl::StatusOr<double> {
    KVIST_ASSIGN_OR_RETURN(const Measured measured, write ? bench->Write(payload) : bench->Read(payload));
    product_cpu.push_back(measured.cpu_per_gb);
    return measured.bytes_per_second * 1e-9;
  };
  const auto raw = [&]() -> absl::StatusOr<double> {
    KVIST_ASSIGN_OR_RETURN(const Measured with_checksums, bench->Raw(write, payload.value / kShardLayers));
    KVIST_ASSIGN_OR_RETURN(const Measured measured, bench->Raw(write, 0));
    limit_cpu.push_back(measured.cpu_per_gb + std::max(with_checksums.cpu_per_gb, measured.cpu_per_gb));
    return measured.bytes_per_second * 1e-9;
  };
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> pairs, Alternate(time, product, raw, pairs_min));
  const std::string name = absl::StrCat(write ? "write " : "read ", payload.value >> 20, " MiB shards");
  const Pair rate = MedianByRatio(std::move(pairs));
  report->cases.push_back({name, rate.product, "GB/s", rate.limit, Better::kHigher, 0.9});
  std::vector<Pair> cpu;
  for (size_t i = 0; i < product_cpu.size(); ++i) cpu.push_back({product_cpu[i] * 1e3, limit_cpu[i] * 1e3});
  const Pair median = MedianByRatio(std::move(cpu));
  report->cases.push_back({absl::StrCat(name, ", cpu"), median.product, "ms/GB", median.limit, Better::kLower, 1});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSsd(const Settings& settings, Report* report) {
  SsdBench bench(settings);
  KVIST_RETURN_IF_ERROR(bench.Open());
  std::fprintf(stderr, "kvist-bench ssd: %s\n", bench.how().c_str());
  const size_t pairs_min = settings.quick ? 1 : kPairsMin;
  for (const Bytes payload : {MiB(16), MiB(2)}) {
    for (const bool write : {true, false})
      KVIST_RETURN_IF_ERROR(Compare(&bench, write, payload, settings.time / 5, pairs_min, report));
  }
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> layers, Alternate(
                                                       settings.time / 5, [&] { return bench.LayerZero(); },
                                                       [&] { return bench.RawLayerZero(); }, pairs_min));
  const Pair layer = MedianByRatio(std::move(layers));
  report->cases.push_back({"layer 0 of 64 chunks", layer.product * 1e3, "ms", layer.limit * 1e3, Better::kLower, 2});
  KVIST_RETURN_IF_ERROR(MeasureDiskLoads(settings, settings.time / 3, pairs_min, report));
  const Pair seal = bench.Seal();
  report->cases.push_back({"seal of a header, 64 layers", seal.product, "us", seal.limit, Better::kLower, std::nullopt});
  return absl::OkStatus();
}

}  // namespace kvist::bench
