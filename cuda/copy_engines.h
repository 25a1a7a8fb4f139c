#ifndef KVIST_CUDA_COPY_ENGINES_H_
#define KVIST_CUDA_COPY_ENGINES_H_

#include <functional>
#include <memory>

#include "cuda/copy_engine.h"

namespace kvist::cuda {

// Several copy engines as one: a copy goes to that of its memory's GPU, which is made with its first copy, or to `host`.
std::unique_ptr<CopyEngine> JoinCopyEngines(std::unique_ptr<CopyEngine> host,
                                            std::function<std::unique_ptr<CopyEngine>(Gpu* gpu)> make);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_COPY_ENGINES_H_
