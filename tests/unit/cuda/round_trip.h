#ifndef KVIST_TESTS_UNIT_CUDA_ROUND_TRIP_H_
#define KVIST_TESTS_UNIT_CUDA_ROUND_TRIP_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "cuda/copy_engine.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {

// Stores random chunks into slots, loads them into other pages, over random layers; everything there is must look as after
// plain loops, and no layer be reported before it is there. `gpu`: as for KvWorld.
void CheckRoundTrip(const NamedLayout& named, Seal seal, uint64_t seed,
                    const std::function<std::unique_ptr<CopyEngine>(CopyEngine::Done)>& make, Gpu* gpu = nullptr);

}  // namespace kvist::cuda

#endif  // KVIST_TESTS_UNIT_CUDA_ROUND_TRIP_H_
