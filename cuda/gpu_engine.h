#ifndef KVIST_CUDA_GPU_ENGINE_H_
#define KVIST_CUDA_GPU_ENGINE_H_

#include <functional>
#include <memory>
#include <optional>

#include "cuda/copy_engine.h"
#include "cuda/gpu.h"
#include "cuda/path_choice.h"

namespace kvist::cuda {

// The copy engine of one GPU: batches of DMA (small pages staged where that has been faster, staged_path.h), a stream or two a direction, so that
// both of the bus's directions are in use; loads have the higher priority. A thread claims units, hands them to the driver as batches, and asks
// for their end: the driver never calls back, nothing waits on the device, and what an engine's stream isn't through with yet holds up nobody else
// (PagesReady is asked here, no stream waits for it).
//
// A batch is 2 to 32 MiB, the larger the more is in flight; at most 64 MiB are (1.2 ms on a PCIe 5.0 bus), which is what a load behind others or a
// cancel waits for; of stores 16 MiB while there are loads.
//
// Errors besides CopyEngine's: Unavailable  the GPU is lost to this process; so ends every copy from then on.  ResourceExhausted and others of
//   the driver's for the copies of one batch; the next one is tried again.
// `gpu` outlives the engine.
struct GpuEngineOptions {
  Verify verify = Verify::kNever;
  // How to choose between DMA and staging; nothing: DMA for all. Where there is no kernel, no memory on the GPU, or a launch fails, it is DMA, too.
  std::optional<PathChoice::Options> kernel = {};
  // Whether all slots are pinned: DMA in large pieces needs it.
  std::function<bool()> slots_pinned = nullptr;
  // Hear, on the engine's thread, why there is no kernel although one is asked for (DMA does it all then); and which way was found to be faster.
  std::function<void(const absl::Status&)> no_kernel = [](const absl::Status&) {};
  std::function<void(Direction, const PathChoice::Found&)> found = [](Direction, const PathChoice::Found&) {};
};
std::unique_ptr<CopyEngine> MakeGpuEngine(Gpu* gpu, GpuEngineOptions options, CopyEngine::Done done);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPU_ENGINE_H_
