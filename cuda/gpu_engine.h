#ifndef KVIST_CUDA_GPU_ENGINE_H_
#define KVIST_CUDA_GPU_ENGINE_H_

#include <functional>
#include <memory>
#include <optional>

#include "cuda/copy_engine.h"
#include "cuda/gpu.h"
#include "cuda/path_choice.h"

namespace kvist::cuda {

// The copy engine of one GPU: batches of DMA (or, for small pages, of a kernel where that has been faster) on two streams, one a direction, so that both of the bus's directions are in use; loads have the
// higher priority. A thread claims units, hands them to the driver as batches, and asks for their end: the driver never calls back, nothing
// waits on the device, and what an engine's stream isn't through with yet holds up nobody else (PagesReady is asked here, no stream waits for it).
//
// A batch is some 8 MiB: large enough that an event and a call a batch cost little, small enough for a load or a cancel to get its turn within
// 150 us on a PCIe 5.0 bus. Few are in flight: of loads enough to keep the bus busy, of stores less while there are loads.
//
// Errors besides CopyEngine's: Unavailable  the GPU is lost to this process; so ends every copy from then on.  ResourceExhausted and others of
//   the driver's for the copies of one batch; the next one is tried again.
// `gpu` outlives the engine.
struct GpuEngineOptions {
  Verify verify = Verify::kNever;
  // How to choose between DMA and kvist's kernel; nothing: DMA for all. Where there is no kernel, or it can't be
  // launched, it is DMA, too.
  std::optional<PathChoice::Options> kernel = {};
  // Whether all slots are pinned: a kernel may touch nothing else.
  std::function<bool()> slots_pinned = nullptr;
  // Hear, on the engine's thread, why there is no kernel although one is asked for (DMA does it all then); and which way was found to be faster.
  std::function<void(const absl::Status&)> no_kernel = [](const absl::Status&) {};
  std::function<void(Direction, const PathChoice::Found&)> found = [](Direction, const PathChoice::Found&) {};
};
std::unique_ptr<CopyEngine> MakeGpuEngine(Gpu* gpu, GpuEngineOptions options, CopyEngine::Done done);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPU_ENGINE_H_
