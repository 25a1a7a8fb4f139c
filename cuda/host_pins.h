#ifndef KVIST_CUDA_HOST_PINS_H_
#define KVIST_CUDA_HOST_PINS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cuda/gpu.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// Pins the pool's memory for the GPUs, so that their copy engines reach it themselves: by a thread of its own, for it takes a while (some
// 100 ms a GiB). What isn't pinned yet, or can't be, is copied all the same, slower.
//
// Lifecycle: Add, any number of times; pinning begins with the first Gpu and goes on with what is added later. The destructor unpins.
// Threads: any.
class HostPins {
 public:
  // Said once for each memory, on the pinning thread: OK and how long it took, or why the rest of it isn't pinned.
  using Said = std::function<void(const absl::Status& status, Bytes pinned, absl::Duration took)>;
  explicit HostPins(Said said) : said_(std::move(said)) {}
  ~HostPins();

  // Memory that outlives this object, or at least what is copied. No copy may cross the border between two pieces: a driver refuses that.
  void Add(std::span<std::byte> memory, Bytes piece);
  // The first Gpu, which outlives this object.
  void Begin(const Gpu* gpu);
  Bytes pinned() const { return Bytes{pinned_.load(std::memory_order_relaxed)}; }

 private:
  struct Wish {
    std::span<std::byte> memory;
    Bytes piece;
  };
  void Run();
  absl::Status Pin(const Wish& wish, Bytes* pinned);

  const Said said_;
  const Gpu* gpu_ = nullptr;  // set before the thread begins
  std::atomic<uint64_t> pinned_{0};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<Wish> wishes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::span<std::byte>> pieces_ ABSL_GUARDED_BY(mutex_);  // that are pinned
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_HOST_PINS_H_
