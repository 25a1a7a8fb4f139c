#include "cuda/staged_path.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "storage/base/status.h"

namespace kvist::cuda {

absl::StatusOr<std::unique_ptr<StagedPath>> StagedPath::Make(Gpu* gpu, Direction direction, const CopyKernel* kernel) {
  auto path = std::unique_ptr<StagedPath>(new StagedPath(gpu, direction, kernel));
  KVIST_ASSIGN_OR_RETURN(path->ring_, StagingRing::Make(gpu, kRing));
  KVIST_ASSIGN_OR_RETURN(path->stream_, MakeStream(*gpu, direction));
  return path;
}

StagedPath::~StagedPath() {
  const driver::Driver& driver = gpu_->driver();
  for (const driver::Event event : free_events_) (void)driver->EventDestroy(event);
  if (stream_ != nullptr) (void)driver->StreamDestroy(stream_);
}

absl::Status StagedPath::HandOver(const BatchEntries& entries, driver::Stream dma, Batch* batch) {
  driver::Address at = ring_->Take(Bytes{entries.bytes});
  if (at == 0) return absl::ResourceExhaustedError("no room in the ring");
  batch->in_ring = true;
  over_bus_.Clear();
  on_device_.Clear();
  for (size_t i = 0; i < entries.count(); ++i) {
    const size_t size = entries.sizes[i];
    if (direction_ == Direction::kLoad) {
      over_bus_.Join(at, entries.from[i], size);
      on_device_.Add(entries.to[i], at, size);
    } else {
      on_device_.Add(at, entries.from[i], size);
      over_bus_.Join(entries.to[i], at, size);
    }
    at += size;
  }
  absl::Status status = direction_ == Direction::kLoad ? BusThenKernel(dma, batch) : KernelThenBus(dma, batch);
  if (!status.ok()) (void)gpu_->driver()->StreamSynchronize(stream_);  // `dma` doesn't say when it is quiet
  return status;
}

absl::Status StagedPath::BusThenKernel(driver::Stream dma, Batch* batch) {
  KVIST_RETURN_IF_ERROR(CopyByDma(*gpu_, over_bus_, dma));
  KVIST_RETURN_IF_ERROR(Follow(dma, stream_, batch));
  return Launch(batch);
}

absl::Status StagedPath::KernelThenBus(driver::Stream dma, Batch* batch) {
  KVIST_RETURN_IF_ERROR(Launch(batch));
  KVIST_RETURN_IF_ERROR(Follow(stream_, dma, batch));
  return CopyByDma(*gpu_, over_bus_, dma);
}

absl::Status StagedPath::Follow(driver::Stream before, driver::Stream after, Batch* batch) {
  const driver::Driver& driver = gpu_->driver();
  if (free_events_.empty()) {
    driver::Event event = nullptr;
    KVIST_RETURN_IF_ERROR(driver.Check(driver->EventCreate(&event, driver::kEventDisableTiming), "cuEventCreate"));
    free_events_.push_back(event);
  }
  batch->half_way = free_events_.back();
  free_events_.pop_back();
  KVIST_RETURN_IF_ERROR(driver.Check(driver->EventRecord(batch->half_way, before), "cuEventRecord"));
  return driver.Check(driver->StreamWaitEvent(after, batch->half_way, 0), "cuStreamWaitEvent");
}

absl::Status StagedPath::Launch(Batch* batch) {
  const BatchEntries& pieces = on_device_;
  for (size_t first = 0; first < pieces.count(); first += CopyKernel::kExtentsMax) {
    if (free_extents_.empty()) {
      KVIST_ASSIGN_OR_RETURN(std::unique_ptr<CopyKernel::Extents> made, kernel_->MakeExtents());
      free_extents_.push_back(std::move(made));
    }
    batch->extents.push_back(std::move(free_extents_.back()));
    free_extents_.pop_back();
    CopyKernel::Extents& extents = *batch->extents.back();
    const size_t count = std::min(pieces.count() - first, CopyKernel::kExtentsMax);
    for (size_t i = 0; i < count; ++i)
      extents.data()[i] = {pieces.to[first + i], pieces.from[first + i], pieces.sizes[first + i]};
    KVIST_RETURN_IF_ERROR(kernel_->Launch(stream_, extents, static_cast<uint32_t>(count)));
  }
  return absl::OkStatus();
}

void StagedPath::GiveBack(Batch* batch) {
  if (batch->in_ring) ring_->GiveBack();
  if (batch->half_way != nullptr) free_events_.push_back(batch->half_way);
  std::move(batch->extents.begin(), batch->extents.end(), std::back_inserter(free_extents_));
  *batch = {};
}

}  // namespace kvist::cuda
