#include "cuda/gpu_lane.h"

#include <algorithm>
#include <variant>

#include "cuda/extents.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

using driver::Result;

// A batch that was sent so long ago is asked for so often.
constexpr absl::Duration kPatienceLeast = absl::Microseconds(10);
constexpr absl::Duration kPatienceBusy = absl::Microseconds(50);
constexpr absl::Duration kPatienceMost = absl::Milliseconds(1);
constexpr uint32_t kStagingFailsMost = 4;
// Around the time at which the last batch in flight will have ended, it is asked for all the time.
constexpr absl::Duration kAwakeBefore = absl::Microseconds(60);
constexpr absl::Duration kAwakeAfter = absl::Microseconds(100);

uint64_t BytesOf(const RunningCopy& running, const Unit& unit) {
  const PieceRange pieces = running.PiecesOf(unit);
  return (pieces.end - pieces.first) * running.copy().layout().segment_bytes.value * unit.layer_count;
}

}  // namespace

absl::Status GpuLane::Open(Gpu* gpu, Direction direction) {
  gpu_ = gpu;
  direction_ = direction;
  KVIST_ASSIGN_OR_RETURN(stream_, MakeStream(*gpu, direction));
  return absl::OkStatus();
}

void GpuLane::UseKernel(SmallPieces small) {
  small_ = std::move(small);
  choice_.emplace(small_.choice);
}

void GpuLane::Close() {
  KVIST_CHECK(idle());
  const driver::Driver& driver = gpu_->driver();
  staged_.reset();
  if (last_end_ != nullptr) free_timed_events_.push_back(last_end_);
  for (const auto* events : {&free_events_, &free_timed_events_}) {
    for (const driver::Event event : *events) (void)driver->EventDestroy(event);
  }
  if (stream_ != nullptr) (void)driver->StreamDestroy(stream_);
}

bool GpuLane::Put(UnitOfCopy unit) {
  const size_t sent_before = in_flight_.size();
  // By layer: who waits for the layer before mustn't wait for this one, too.
  if (!open_.units.empty() && open_.bytes >= UnitPlan::kUnitBytes / 2) {
    const UnitOfCopy& last = open_.units.back();
    if (last.copy != unit.copy || unit.copy->StepOf(last.unit) != unit.copy->StepOf(unit.unit)) Send();
  }
  const uint64_t bytes = BytesOf(*unit.copy, unit.copy->UnitAt(unit.unit));
  const size_t before = entries_.count();
  Expand(unit);
  if (before > 0 && entries_.count() > EntriesMost()) {
    BatchEntries own = entries_.TakeFrom(before);
    Send();
    entries_ = std::move(own);
  }
  open_.units.push_back(std::move(unit));
  open_.bytes += bytes;
  bytes_ += bytes;
  const uint64_t most = staged_last_ ? StagedPath::kBatchBytes : kBatchBytes;
  const uint64_t full = std::clamp(bytes_ - open_.bytes, UnitPlan::kUnitBytes, most);
  if (open_.bytes >= full || entries_.count() >= EntriesMost()) Send();
  return in_flight_.size() > sent_before;
}

size_t GpuLane::EntriesMost() const {
  // A batch that is too small for it teaches nothing.
  const bool may_teach = !choice_ || entries_.bytes >= small_.choice.batch_least.value;
  return staged_last_ || !may_teach ? kStagedEntries : kDmaEntries;
}

void GpuLane::Expand(const UnitOfCopy& of) {
  const Copy& copy = of.copy->copy();
  const Unit unit = of.copy->UnitAt(of.unit);
  for (uint32_t l = 0; l < unit.layer_count; ++l) {
    const LayerIndex layer{copy.first_layer + unit.first_layer + l};
    const auto& region = std::get<DeviceRegion>(copy.memory->regions[copy.layout().layers[layer.value].region].way());
    ExtentCursor cursor(copy, layer, PieceOrder::kSlot, of.copy->PiecesOf(unit));
    for (Extent extent; cursor.Next(&extent);) {
      const driver::Address page = region.address + extent.at.value;
      const auto slot = reinterpret_cast<driver::Address>(extent.slot);
      if (direction_ == Direction::kLoad) {
        entries_.Add(page, slot, extent.length);
      } else {
        entries_.Add(slot, page, extent.length);
      }
    }
  }
}

void GpuLane::Send() {
  if (open_.units.empty()) return;
  open_.sent_nanos = MonotonicNanos();
  open_.at_work = std::exchange(at_work_, true);
  open_.status = HandOver();
  entries_.Clear();
  in_flight_.push_back(std::exchange(open_, {}));
}

absl::Status GpuLane::Record(driver::Stream stream, driver::Event* event) {
  const driver::Driver& driver = gpu_->driver();
  std::vector<driver::Event>& free = FreeEvents(open_.timed);
  if (free.empty()) {
    driver::Event made = nullptr;
    KVIST_RETURN_IF_ERROR(driver.Check(
        driver->EventCreate(&made, open_.timed ? driver::kEventTimed : driver::kEventDisableTiming), "cuEventCreate"));
    free.push_back(made);
  }
  KVIST_RETURN_IF_ERROR(driver.Check(driver->EventRecord(free.back(), stream), "cuEventRecord"));
  *event = free.back();
  free.pop_back();
  return absl::OkStatus();
}

absl::Status GpuLane::HandOver() {
  KVIST_RETURN_IF_ERROR(gpu_->lost());
  // Without entries all of its pages are absent.
  const absl::StatusOr<driver::Stream> last = entries_.count() == 0 ? stream_ : CopyEntries();
  // Also after an error: some of it may be under way.
  const driver::Stream end_stream = last.ok() ? *last : stream_;
  if (absl::Status status = Record(end_stream, &open_.event); !status.ok()) {
    if (absl::IsUnavailable(status)) gpu_->Lose(status);
    (void)gpu_->driver()->StreamSynchronize(end_stream);  // there is no other way left to know when it is quiet
    return status;
  }
  return last.status();
}

absl::StatusOr<driver::Stream> GpuLane::CopyEntries() {
  if (Choose() == PathChoice::Path::kDma) return Dma();
  if (MakeStaged()) {
    const absl::Status status = staged_->HandOver(entries_, stream_, &open_.staged);
    if (status.ok()) {
      staging_failed_ = 0;
      staged_last_ = true;
      return staged_->end_stream(stream_);
    }
    open_.path.reset();  // it tells nothing of that way's speed; what is under way of it copies the same bytes
    if (open_.staged.in_ring) StagingFailed(status);
  }
  return Dma();
}

// Each time costs what has gone over the bus for nothing, and a wait. What has failed so often is left alone from then on.
void GpuLane::StagingFailed(const absl::Status& why) {
  if (++staging_failed_ < kStagingFailsMost) return;
  small_.no_kernel(why);
  choice_.reset();
}

absl::StatusOr<driver::Stream> GpuLane::Dma() {
  staged_last_ = false;
  KVIST_RETURN_IF_ERROR(CopyByDma(*gpu_, entries_, stream_));
  return stream_;
}

bool GpuLane::MakeStaged() {
  if (staged_ != nullptr) return true;
  absl::StatusOr<std::unique_ptr<StagedPath>> made = StagedPath::Make(gpu_, direction_, small_.kernel);
  if (made.ok()) {
    staged_ = *std::move(made);
  } else {
    small_.no_kernel(made.status());
    choice_.reset();
    open_.path.reset();
  }
  return staged_ != nullptr;
}

PathChoice::Path GpuLane::Choose() {
  open_.moved = Bytes{entries_.bytes};
  open_.piece = Bytes{entries_.bytes / entries_.count()};
  if (!choice_ || open_.piece >= small_.choice.below || !small_.slots_pinned()) return PathChoice::Path::kDma;
  open_.path = choice_->Next(open_.piece, open_.moved);
  open_.timed = true;
  // A store's first step is on the other stream, behind what is on that.
  if (!Record(stream_, &open_.began).ok()) open_.began = nullptr;
  return *open_.path;
}

std::optional<absl::Duration> GpuLane::Elapsed(driver::Event from, driver::Event to) const {
  float milliseconds = 0;
  if (gpu_->driver()->EventElapsedTime(&milliseconds, from, to) != Result::kSuccess) return std::nullopt;
  return absl::Milliseconds(milliseconds);
}

// By the device's clock: what a batch took is what came between the end of the one before it and its own, which counts what the thread needs to
// hand over this lane's and the other's; where there was nothing to do between them, from when its turn came.
void GpuLane::Learn(const Batch& batch) {
  if (!choice_ || !batch.path || batch.began == nullptr) return;
  std::optional<absl::Duration> took = Elapsed(batch.began, batch.event);
  if (!took) return;
  const auto after = last_end_ == nullptr ? std::nullopt : Elapsed(last_end_, batch.event);
  if (after && *after > absl::ZeroDuration()) took = batch.at_work ? *after : std::min(*took, *after);
  if (const auto found = choice_->Learn(*batch.path, batch.piece, batch.moved, *took)) small_.found(direction_, *found);
}

bool GpuLane::Collect(Ended* ended) {
  if (in_flight_.empty()) return false;
  Batch& front = in_flight_.front();
  if (front.event != nullptr) {
    const Result result = gpu_->driver()->EventQuery(front.event);
    if (result == Result::kNotReady) return false;
    if (result != Result::kSuccess) {
      front.status = gpu_->driver().Check(result, "cuEventQuery");
      gpu_->Lose(front.status);
    }
    if (front.status.ok()) Learn(front);
    // The end of one that isn't timed is nothing to count from.
    if (last_end_ != nullptr) free_timed_events_.push_back(last_end_);
    last_end_ = front.timed ? front.event : nullptr;
    if (!front.timed) free_events_.push_back(front.event);
  }
  if (front.began != nullptr) free_timed_events_.push_back(front.began);
  if (staged_ != nullptr) staged_->GiveBack(&front.staged);
  const int64_t now = MonotonicNanos();
  if (const int64_t took = now - std::max(front.sent_nanos, last_end_nanos_); front.status.ok() && took > 0) {
    bytes_per_nano_ = 0.9 * bytes_per_nano_ + 0.1 * static_cast<double>(front.bytes) / static_cast<double>(took);
  }
  last_end_nanos_ = now;
  bytes_ -= front.bytes;
  *ended = {std::move(front.units), std::move(front.status)};
  in_flight_.pop_front();
  return true;
}

absl::Duration GpuLane::Patience() const {
  if (in_flight_.empty()) return absl::InfiniteDuration();
  const Batch& front = in_flight_.front();
  const double nanos = static_cast<double>(front.bytes) / std::max(bytes_per_nano_, 0.1);
  const int64_t end = std::max(front.sent_nanos, last_end_nanos_) + static_cast<int64_t>(nanos);
  const absl::Duration left = absl::Nanoseconds(end - MonotonicNanos());
  // With much behind it there is no hurry: each look costs some microseconds.
  if (bytes_ - front.bytes >= kWindow / 2) return std::clamp(left, kPatienceBusy, kPatienceMost);
  // The end of the last one is waited for: a nap's end may be late by as much.
  if (in_flight_.size() == 1 && left < kAwakeBefore && left > -kAwakeAfter) return absl::ZeroDuration();
  return std::clamp(left * 0.8, kPatienceLeast, kPatienceMost);
}

}  // namespace kvist::cuda
