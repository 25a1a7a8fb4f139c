#ifndef KVIST_CUDA_STAGED_PATH_H_
#define KVIST_CUDA_STAGED_PATH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/batch_entries.h"
#include "cuda/copy_kernel.h"
#include "cuda/gpu.h"
#include "cuda/staging_ring.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// One direction's way for small pages: over the bus by DMA in pieces as large as the slots have them, to or from a ring in GPU memory of
// kvistd's own; and a kernel between the ring and the engine's pages, which takes a hundredth of the time, for GPU memory is so much faster.
//
//   load     slots --DMA, `dma`--> ring --kernel, own stream--> pages
//   store    pages --kernel, own stream--> ring --DMA, `dma`--> slots
//
// Two streams, so that one batch is on the bus while the kernel of another waits for its turn beside the engine's: a turn comes every 1.2 ms
// beside a busy engine without MPS (cuda/README.md), and all kernels that are ready by then run in it.
//
// Threads: one, with the GPU's context current; also to make and to destroy.
class StagedPath {
 public:
  // Of a batch: the kernel of one is ready while others are on the bus.
  static constexpr uint64_t kBatchBytes = uint64_t{16} << 20;
  // GPU memory that it holds: 64 MiB in flight (GpuLane::kWindow), for the bus to be busy at 55 GB/s from one turn to the next; a batch more; and
  // what is lost at the end of a ring.
  static constexpr Bytes kRing = MiB(96);

  // Errors: ResourceExhausted  the GPU has no memory left. Others of the driver's.
  static absl::StatusOr<std::unique_ptr<StagedPath>> Make(Gpu* gpu, Direction direction, const CopyKernel* kernel);
  ~StagedPath();  // all batches are given back

  // What a batch has until it is over.
  struct Batch {
    bool in_ring = false;
    std::vector<std::unique_ptr<CopyKernel::Extents>> extents;  // of the kernel's launches
    driver::Event half_way = nullptr;
  };

  // Hands over a batch's entries, neighbours in slots next to each other. It is over when all is that is now on end_stream(dma).
  // Errors: ResourceExhausted  no room in the ring until a batch is given back. Those of the driver: what is under way copies the same bytes,
  //   and is over when all is that is now on `dma`.
  absl::Status HandOver(const BatchEntries& entries, driver::Stream dma, Batch* batch);
  driver::Stream end_stream(driver::Stream dma) const { return direction_ == Direction::kLoad ? stream_ : dma; }
  // Of a batch that is over, in the order in which they were handed over.
  void GiveBack(Batch* batch);

 private:
  StagedPath(Gpu* gpu, Direction direction, const CopyKernel* kernel) : gpu_(gpu), direction_(direction), kernel_(kernel) {}
  absl::Status BusThenKernel(driver::Stream dma, Batch* batch);
  absl::Status KernelThenBus(driver::Stream dma, Batch* batch);
  absl::Status Launch(Batch* batch);
  // `after` goes on when all is over that is now on `before`.
  absl::Status Follow(driver::Stream before, driver::Stream after, Batch* batch);

  Gpu* const gpu_;
  const Direction direction_;
  const CopyKernel* const kernel_;
  std::unique_ptr<StagingRing> ring_;
  driver::Stream stream_ = nullptr;  // the kernel's
  std::vector<driver::Event> free_events_;
  std::vector<std::unique_ptr<CopyKernel::Extents>> free_extents_;
  BatchEntries over_bus_, on_device_;  // of the batch that is being handed over: slots and ring, ring and pages
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_STAGED_PATH_H_
