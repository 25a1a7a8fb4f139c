#ifndef KVIST_CUDA_SHARED_MEMORY_ENGINE_H_
#define KVIST_CUDA_SHARED_MEMORY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/copy_engine.h"

namespace kvist::cuda {

// The copy engine for CPU engines: worker threads that copy through shared memory with non-temporal stores (neither side's
// cache is worth filling with the other's bytes), or with preadv/pwritev where a region is not mapped.
struct SharedMemoryEngineOptions {
  uint32_t threads = 2;   // copying threads; more help until memory bandwidth is reached (2 of them reach 20 to 30 GB/s)
  std::vector<int> cpus;  // when not empty, thread i is pinned to cpus[i % size]; benchmarks only
  Verify verify = Verify::kNever;  // the same for as long as the slots hold anything

  absl::Status Validate() const;
};
std::unique_ptr<CopyEngine> MakeSharedMemoryEngine(SharedMemoryEngineOptions options, CopyEngine::Done done);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SHARED_MEMORY_ENGINE_H_
