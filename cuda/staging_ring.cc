#include "cuda/staging_ring.h"

#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Make(Gpu* gpu, Bytes size) {
  auto ring = std::unique_ptr<StagingRing>(new StagingRing(gpu, size));
  KVIST_RETURN_IF_ERROR(gpu->driver().Check(gpu->driver()->MemAlloc(&ring->base_, size.value), "cuMemAlloc"));
  gpu->AddOwn(size);
  return ring;
}

StagingRing::~StagingRing() {
  if (base_ == 0) return;
  (void)gpu_->driver()->MemFree(base_);
  gpu_->SubtractOwn({size_});
}

driver::Address StagingRing::Take(Bytes wanted) {
  const uint64_t size = AlignUp(wanted, Bytes{256}).value;
  uint64_t first = 0;
  if (taken_.empty()) {
    if (size > size_) return 0;
  } else {
    first = taken_.back().end;
    const uint64_t oldest = taken_.front().first;
    const bool wrapped = first <= oldest;
    if (!wrapped && size > size_ - first) {
      if (size > oldest) return 0;
      first = 0;
    } else if (wrapped && size > oldest - first) {
      return 0;
    }
  }
  taken_.push_back({first, first + size});
  return base_ + first;
}

void StagingRing::GiveBack() {
  KVIST_CHECK(!taken_.empty());
  taken_.pop_front();
}

}  // namespace kvist::cuda
