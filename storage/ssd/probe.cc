#include "storage/ssd/probe.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/ssd/format.h"

namespace kvist::ssd {
namespace {

constexpr double kReadsPart = 0.4;  // of the time, at least: where writes are slow they took all of it
constexpr Bytes kTried[] = {MiB(1), MiB(2), MiB(4), MiB(8)};
constexpr int kRounds = 3;         // of all of them: who is alone on a busy machine for a moment isn't the fastest
constexpr Bytes kRange = MiB(64);  // of the file
constexpr double kKnee = 0.95;     // as fast as this part of the fastest is fast enough
// What is handed out: twice as many, so that the device isn't idle while its owner checks or seals a record, and not less than this.
// Reads need more: a virtual disk that has just been written to gives a third of what it gives later, so its rate is no measure of it.
constexpr Bytes kReadsMin = MiB(8), kWritesMin = MiB(4);
constexpr Bytes kMemory = MiB(8);  // the most that is in flight
// So much more as the device does in this time, at most this: its owner computes checksums meanwhile, of large records for longer
// than the knee lasts (writes at 4 GB/s: 0.70 to 0.75 of bare ones with 4 MiB in flight, 0.92 to 0.98 with 16). Longer: a read that comes waits longer.
constexpr absl::Duration kAhead = absl::Milliseconds(6);
constexpr Bytes kBudgetMax = MiB(32);

class Prober {
 public:
  Prober(Device* device, uint32_t segment, Bytes range)
      : device_(device), segment_(segment), range_(range), memory_(Allocate(), &std::free) {}

  absl::Status Do(Io::Kind kind) {
    device_->Submit({.kind = kind, .segment = segment_});
    std::vector<Completion> ended;
    while (ended.empty()) device_->Wait(absl::InfiniteFuture(), &ended);
    return ended[0].error == 0 ? absl::OkStatus() : ErrnoStatus("probing the SSD tier", ended[0].error);
  }

  // Bytes a second with so many in flight, for `time` or until so many pieces are done.
  absl::StatusOr<double> Measure(Io::Kind kind, Bytes budget, absl::Duration time, uint64_t pieces_max = UINT64_MAX) {
    const uint64_t piece = std::min(budget.value / 2, MiB(1).value);
    const uint64_t places = range_.value / piece;
    const uint64_t in_flight_max = std::min<uint64_t>(budget.value / piece, device_->depth());
    const absl::Time began = MonotonicNow();
    const absl::Time end = began + time;
    uint64_t in_flight = 0;
    uint64_t done = 0;
    int error = 0;
    std::vector<Completion> ended;
    std::vector<uint64_t> free;
    for (uint64_t i = 0; i < in_flight_max; ++i) free.push_back(i);
    do {
      while (!free.empty() && error == 0 && in_flight + done < pieces_max &&
             (in_flight + done == 0 || MonotonicNow() < end)) {
        const uint64_t at = free.back();
        free.pop_back();
        const uint64_t offset = next_++ % places * piece;
        device_->Submit({kind, segment_, {offset}, {memory_.get() + at * piece, piece}, at});
        ++in_flight;
      }
      if (in_flight == 0) break;
      ended.clear();
      device_->Wait(absl::InfiniteFuture(), &ended);
      for (const Completion& completion : ended) {
        --in_flight;
        ++done;
        free.push_back(completion.tag);
        if (completion.error != 0) error = completion.error;
      }
    } while (true);
    if (error != 0) return ErrnoStatus("probing the SSD tier", error);
    done_ = {done * piece};
    return static_cast<double>(done * piece) / std::max(absl::ToDoubleSeconds(MonotonicNow() - began), 1e-9);
  }

  // Writes the range once, as far as `time` goes: what hasn't been written is read without asking the disk. So the range ends there.
  absl::Status Fill(absl::Duration time) {
    KVIST_RETURN_IF_ERROR(Measure(Io::Kind::kWrite, MiB(8), time, range_ / MiB(1)).status());
    range_ = done_;
    next_ = 0;
    return absl::OkStatus();
  }

  // The fewest bytes in flight that will do.
  absl::StatusOr<Bytes> FindBudget(Io::Kind kind, absl::Duration time, double* best) {
    double rates[std::size(kTried)] = {};
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < std::size(kTried); ++i) {
        KVIST_ASSIGN_OR_RETURN(const double rate, Measure(kind, kTried[i], time / (kRounds * std::size(kTried))));
        rates[i] = std::max(rates[i], rate);
      }
    }
    *best = *std::max_element(std::begin(rates), std::end(rates));
    size_t at = 0;
    while (rates[at] < kKnee * *best) ++at;
    return std::max(kTried[at] * 2, kind == Io::Kind::kRead ? kReadsMin : kWritesMin);
  }

 private:
  static std::byte* Allocate() {
    void* memory = std::aligned_alloc(kUnit.value, kMemory.value);
    KVIST_CHECK(memory != nullptr);
    // Something that no compressing disk makes nothing of, and that is in memory before it is timed.
    uint64_t state = 1;
    for (uint64_t i = 0; i < kMemory.value / 8; ++i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      static_cast<uint64_t*>(memory)[i] = state ^ (state >> 29);
    }
    return static_cast<std::byte*>(memory);
  }

  Device* const device_;
  const uint32_t segment_;
  Bytes range_;
  Bytes done_{};  // by the last Measure
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  uint64_t next_ = 0;
};

Bytes Ahead(double bytes_per_second) {
  const auto mib = static_cast<uint64_t>(bytes_per_second * absl::ToDoubleSeconds(kAhead)) >> 20;
  return std::min(MiB(mib), kBudgetMax);
}

}  // namespace

absl::StatusOr<ProbeResult> Probe(Device* device, Bytes segment_bytes, const ProbeOptions& options) {
  const Bytes range = std::min(kRange, segment_bytes);
  if (range < MiB(1))
    return absl::InvalidArgumentError(absl::StrCat("probing needs segments of at least 1 MiB, not ", segment_bytes.value));
  Prober prober(device, options.segment, range);
  ProbeResult result;
  absl::Duration left = options.time;
  if (options.may_write) {
    KVIST_RETURN_IF_ERROR(prober.Do(Io::Kind::kAllocate));
    const absl::Time began = MonotonicNow();
    KVIST_RETURN_IF_ERROR(prober.Fill(left / 4));
    left -= MonotonicNow() - began;
    KVIST_ASSIGN_OR_RETURN(
        result.queue.write_budget,
        prober.FindBudget(Io::Kind::kWrite, std::max(left, absl::ZeroDuration()) / 3, &result.write_bytes_per_second));
    result.queue.write_budget = std::max(result.queue.write_budget, Ahead(result.write_bytes_per_second));
    KVIST_RETURN_IF_ERROR(prober.Do(Io::Kind::kSync));
    left = options.time - (MonotonicNow() - began);
  }
  KVIST_ASSIGN_OR_RETURN(
      result.queue.read_budget,
      prober.FindBudget(Io::Kind::kRead, std::max(left, options.time * kReadsPart), &result.read_bytes_per_second));
  result.queue.read_budget = std::max(result.queue.read_budget, Ahead(result.read_bytes_per_second));
  return result;
}

}  // namespace kvist::ssd
