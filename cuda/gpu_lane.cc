#include "cuda/gpu_lane.h"

#include <algorithm>
#include <iterator>
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
constexpr absl::Duration kPatienceMost = absl::Milliseconds(1);

uint64_t BytesOf(const RunningCopy& running, const Unit& unit) {
  const PieceRange pieces = running.PiecesOf(unit);
  return (pieces.end - pieces.first) * running.copy().layout().segment_bytes.value * unit.layer_count;
}

}  // namespace

BatchEntries BatchEntries::TakeFrom(size_t first) {
  BatchEntries taken;
  for (size_t i = first; i < sizes.size(); ++i) taken.Add(to[i], from[i], sizes[i]);
  to.resize(first), from.resize(first), sizes.resize(first);
  bytes -= taken.bytes;
  return taken;
}

absl::Status GpuLane::Open(Gpu* gpu, Direction direction) {
  gpu_ = gpu;
  direction_ = direction;
  const driver::Driver& driver = gpu->driver();
  int least = 0, greatest = 0;
  KVIST_RETURN_IF_ERROR(driver.Check(driver->CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  return driver.Check(driver->StreamCreateWithPriority(&stream_, driver::kStreamNonBlocking,
                                                       direction == Direction::kLoad ? greatest : least),
                      "cuStreamCreateWithPriority");
}

void GpuLane::UseKernel(SmallPieces small) {
  small_ = std::move(small);
  choice_.emplace(small_.choice);
}

void GpuLane::Close() {
  KVIST_CHECK(idle());
  const driver::Driver& driver = gpu_->driver();
  for (const driver::Event event : free_events_) (void)driver->EventDestroy(event);
  free_extents_.clear();
  if (stream_ != nullptr) (void)driver->StreamDestroy(stream_);
}

void GpuLane::Put(UnitOfCopy unit) {
  // By layer: who waits for the layer before mustn't wait for this one, too.
  if (!open_.units.empty() && open_.bytes >= UnitPlan::kUnitBytes / 2) {
    const UnitOfCopy& last = open_.units.back();
    if (last.copy != unit.copy || unit.copy->StepOf(last.unit) != unit.copy->StepOf(unit.unit)) Send();
  }
  const uint64_t bytes = BytesOf(*unit.copy, unit.copy->UnitAt(unit.unit));
  const size_t before = entries_.sizes.size();
  Expand(unit);
  if (before > 0 && entries_.sizes.size() > kBatchEntries) {
    BatchEntries own = entries_.TakeFrom(before);
    Send();
    entries_ = std::move(own);
  }
  open_.units.push_back(std::move(unit));
  open_.bytes += bytes;
  bytes_ += bytes;
  if (open_.bytes >= kBatchBytes || entries_.sizes.size() >= kBatchEntries) Send();
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
  open_.status = HandOver();
  entries_.Clear();
  in_flight_.push_back(std::exchange(open_, {}));
}

absl::Status GpuLane::HandOver() {
  KVIST_RETURN_IF_ERROR(gpu_->lost());
  const driver::Driver& driver = gpu_->driver();
  if (free_events_.empty()) {
    driver::Event event = nullptr;
    KVIST_RETURN_IF_ERROR(driver.Check(driver->EventCreate(&event, driver::kEventDisableTiming), "cuEventCreate"));
    free_events_.push_back(event);
  }
  // Without entries all of its pages are absent.
  const absl::Status status = entries_.sizes.empty() ? absl::OkStatus() : CopyEntries();
  // Also after an error: some of it may be under way.
  if (const Result result = driver->EventRecord(free_events_.back(), stream_); result != Result::kSuccess) {
    const absl::Status why = driver.Check(result, "cuEventRecord");
    if (driver::Driver::IsLost(result)) gpu_->Lose(why);
    (void)driver->StreamSynchronize(stream_);  // there is no other way left to know when it is quiet
    return why;
  }
  open_.event = free_events_.back();
  free_events_.pop_back();
  return status;
}

absl::Status GpuLane::CopyEntries() {
  if (Choose() == PathChoice::Path::kDma) return Dma();
  const absl::Status status = Launch();
  if (status.ok()) return status;
  open_.path.reset();  // it tells nothing of the kernel's speed; what is under way of it copies the same bytes
  return Dma();
}

absl::Status GpuLane::Dma() {
  const driver::Driver& driver = gpu_->driver();
  if (driver->MemcpyBatchAsync != nullptr && gpu_->has_host_addresses()) {
    driver::MemcpyAttributes attributes;
    size_t start = 0, failed = 0;
    return driver.Check(driver->MemcpyBatchAsync(entries_.to.data(), entries_.from.data(), entries_.sizes.data(),
                                                 entries_.sizes.size(), &attributes, &start, 1, &failed, stream_),
                        "cuMemcpyBatchAsync");
  }
  for (size_t i = 0; i < entries_.sizes.size(); ++i) {
    KVIST_RETURN_IF_ERROR(
        driver.Check(driver->MemcpyAsync(entries_.to[i], entries_.from[i], entries_.sizes[i], stream_), "cuMemcpyAsync"));
  }
  return absl::OkStatus();
}

PathChoice::Path GpuLane::Choose() {
  if (!choice_ || !small_.slots_pinned()) return PathChoice::Path::kDma;
  open_.moved = Bytes{entries_.bytes};
  open_.piece = Bytes{entries_.bytes / entries_.sizes.size()};
  open_.path = choice_->Next(open_.piece, open_.moved);
  return *open_.path;
}

void GpuLane::Learn(const Batch& batch, absl::Duration took) {
  // One that was over before anybody looked at it tells nothing of how long it took.
  if (!batch.path || (!batch.seen_running && batch.sent_nanos < last_end_nanos_)) return;
  if (const auto found = choice_->Learn(*batch.path, batch.piece, batch.moved, took)) small_.found(direction_, *found);
}

absl::Status GpuLane::Launch() {
  for (size_t first = 0; first < entries_.sizes.size(); first += CopyKernel::kExtentsMax) {
    if (free_extents_.empty()) {
      KVIST_ASSIGN_OR_RETURN(std::unique_ptr<CopyKernel::Extents> made, small_.kernel->MakeExtents());
      free_extents_.push_back(std::move(made));
    }
    open_.extents.push_back(std::move(free_extents_.back()));
    free_extents_.pop_back();
    CopyKernel::Extents& extents = *open_.extents.back();
    const size_t count = std::min(entries_.sizes.size() - first, CopyKernel::kExtentsMax);
    for (size_t i = 0; i < count; ++i)
      extents.data()[i] = {entries_.to[first + i], entries_.from[first + i], entries_.sizes[first + i]};
    KVIST_RETURN_IF_ERROR(small_.kernel->Launch(stream_, extents, static_cast<uint32_t>(count)));
  }
  return absl::OkStatus();
}

bool GpuLane::Collect(Ended* ended) {
  if (in_flight_.empty()) return false;
  Batch& front = in_flight_.front();
  if (front.event != nullptr) {
    const Result result = gpu_->driver()->EventQuery(front.event);
    if (result == Result::kNotReady) {
      front.seen_running = true;
      return false;
    }
    if (result != Result::kSuccess) {
      front.status = gpu_->driver().Check(result, "cuEventQuery");
      gpu_->Lose(front.status);
    }
    free_events_.push_back(front.event);
  }
  std::move(front.extents.begin(), front.extents.end(), std::back_inserter(free_extents_));
  const int64_t now = MonotonicNanos();
  if (const int64_t took = now - std::max(front.sent_nanos, last_end_nanos_); front.status.ok() && took > 0) {
    bytes_per_nano_ = 0.9 * bytes_per_nano_ + 0.1 * static_cast<double>(front.bytes) / static_cast<double>(took);
    Learn(front, absl::Nanoseconds(took));
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
  return std::clamp(absl::Nanoseconds(end - MonotonicNanos()) * 0.8, kPatienceLeast, kPatienceMost);
}

}  // namespace kvist::cuda
