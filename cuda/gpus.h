#ifndef KVIST_CUDA_GPUS_H_
#define KVIST_CUDA_GPUS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cuda/gpu.h"
#include "cuda/host_pins.h"

namespace kvist::cuda {

// The GPUs of this node: a driver, if there is one, and those GPUs on which an engine has registered. On the others nothing is ever opened.
//
// Lifecycle: the driver is loaded with the first Use; so a daemon that serves CPU engines never loads it. Outlives everything that a Gpu has
//   given out, and all copies.
// Threads: any; the first Use of a GPU makes a context, which takes the driver some 100 ms.
class Gpus {
 public:
  // What an operator wants to read.
  using Log = std::function<void(bool warning, const std::string& text)>;
  Gpus(std::string library, Log log);

  // The GPU with this UUID, open. Lives as long as this object.
  // Errors: FailedPrecondition  no driver here, or it can't serve; says why. Those of Gpu::Open.
  absl::StatusOr<Gpu*> Use(const driver::Uuid& uuid);

  // Memory of the pool, to be pinned once there is a Gpu (HostPins::Add).
  void AddHostMemory(std::span<std::byte> memory, Bytes piece) { pins_.Add(memory, piece); }

  // Whether so much of the pool is pinned. Waits for nobody.
  bool HasPinned(Bytes bytes) const { return pins_.pinned() >= bytes; }

  struct Figures {
    struct OfGpu {
      std::string name;
      Bytes imported;     // of engines' memory that is mapped here
      Bytes own;          // of kvistd's memory there
      absl::Status lost;  // OK: it isn't
    };
    std::vector<OfGpu> gpus;  // in the order in which engines came
    Bytes pinned;             // of the pool
  };
  Figures figures() const;  // waits for nobody

 private:
  const std::string library_;
  const Log log_;
  absl::Mutex opening_;  // held while the driver opens something
  std::shared_ptr<const driver::Driver> driver_ ABSL_GUARDED_BY(opening_);
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Gpu>> gpus_ ABSL_GUARDED_BY(mutex_);
  HostPins pins_;  // last: it uses a Gpu
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPUS_H_
