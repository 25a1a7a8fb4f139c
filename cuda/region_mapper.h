#ifndef KVIST_CUDA_REGION_MAPPER_H_
#define KVIST_CUDA_REGION_MAPPER_H_

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cuda/kv_memory.h"

namespace kvist::cuda {

// Enters engines' memory into this process's page tables before copies do. The first copy of a page through a mapping takes a fault, 1.2 us for 4 KiB,
// as much as three copies of it; entered ahead it takes 0.3 to 0.6 us, on a thread that nobody waits for (Xeon, 2 cores, 2026-11-27).
//
// Only of mapped regions, and only what is in memory already: what this process touched first would count as its own. In pieces of 2 MiB, with
// rests: a quarter of a processor at most.
//
// Lifecycle: one thread, from the constructor to the destructor, which waits for one piece. Where there can be none, or the kernel can't (before
//   5.14), copies take their faults. Memory that ends meanwhile is left alone.
// Threads: Add from any.
class RegionMapper {
 public:
  RegionMapper();
  ~RegionMapper();
  RegionMapper(const RegionMapper&) = delete;
  RegionMapper& operator=(const RegionMapper&) = delete;

  void Add(std::weak_ptr<const KvMemory> memory);

 private:
  void Run();
  void Map(const std::weak_ptr<const KvMemory>& memory);
  bool Rest(absl::Duration time);  // false: it is being stopped

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<std::weak_ptr<const KvMemory>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_REGION_MAPPER_H_
