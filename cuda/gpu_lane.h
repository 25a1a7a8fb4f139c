#ifndef KVIST_CUDA_GPU_LANE_H_
#define KVIST_CUDA_GPU_LANE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cuda/copy_kernel.h"
#include "cuda/gpu.h"
#include "cuda/path_choice.h"
#include "cuda/running_copy.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// Entries of one batch, as the driver wants them.
struct BatchEntries {
  std::vector<driver::Address> to, from;
  std::vector<size_t> sizes;
  uint64_t bytes = 0;

  void Add(driver::Address to_address, driver::Address from_address, size_t size) {
    to.push_back(to_address);
    from.push_back(from_address);
    sizes.push_back(size);
    bytes += size;
  }
  // Those from `first` on, which are no longer here.
  BatchEntries TakeFrom(size_t first);
  void Clear() { to.clear(), from.clear(), sizes.clear(), bytes = 0; }  // keeps their room for the next batch
};

// One direction of a GPU's copies: a stream, and the batches on it that haven't ended, in their order.
//
// A batch: Put its units -> Send -> in flight -> Collect gives the units back, with what came of them.
// Threads: one, with the GPU's context current.
class GpuLane {
 public:
  static constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
  static constexpr size_t kBatchEntries = CopyKernel::kExtentsMax;

  struct UnitOfCopy {
    std::shared_ptr<RunningCopy> copy;
    uint64_t unit = 0;
  };
  struct Ended {
    std::vector<UnitOfCopy> units;
    absl::Status status;
  };

  // Errors: those of the driver.
  absl::Status Open(Gpu* gpu, Direction direction);
  // As GpuEngineOptions has them; the kernel outlives the lane's last batch.
  struct SmallPieces {
    const CopyKernel* kernel = nullptr;
    PathChoice::Options choice;
    std::function<bool()> slots_pinned;
    std::function<void(Direction, const PathChoice::Found&)> found;
  };
  void UseKernel(SmallPieces small);
  void Close();  // nothing is in flight

  // Adds a unit to the batch that is being made; sends that first when the unit had better not wait for it, or after when it is full.
  void Put(UnitOfCopy unit);
  void Send();
  // The next batch that has ended; false: none has. When the device is lost all have.
  bool Collect(Ended* ended);

  bool idle() const { return in_flight_.empty() && open_.units.empty(); }
  uint64_t bytes() const { return bytes_; }  // sent or to be
  // When it is worth asking again.
  absl::Duration Patience() const;

 private:
  struct Batch {
    std::vector<UnitOfCopy> units;
    uint64_t bytes = 0;
    driver::Event event = nullptr;
    std::optional<PathChoice::Path> path;                       // that was chosen; nothing: there was no choice
    Bytes piece;                                                // on average
    Bytes moved;                                                // without what is absent
    std::vector<std::unique_ptr<CopyKernel::Extents>> extents;  // of a kernel's launches
    bool seen_running = false;                                  // after the one before it had ended
    absl::Status status;                                        // of handing it over
    int64_t sent_nanos = 0;
  };
  void Expand(const UnitOfCopy& unit);
  absl::Status HandOver();
  absl::Status CopyEntries();
  PathChoice::Path Choose();
  absl::Status Dma();
  absl::Status Launch();
  void Learn(const Batch& batch, absl::Duration took);

  Gpu* gpu_ = nullptr;
  Direction direction_ = Direction::kLoad;
  driver::Stream stream_ = nullptr;
  SmallPieces small_;                 // without a kernel there is none
  std::optional<PathChoice> choice_;  // with one
  std::vector<driver::Event> free_events_;
  std::vector<std::unique_ptr<CopyKernel::Extents>> free_extents_;
  Batch open_;
  BatchEntries entries_;  // of open_
  std::deque<Batch> in_flight_;
  uint64_t bytes_ = 0;
  double bytes_per_nano_ = 10;  // lately; 10 GB/s until it is known
  int64_t last_end_nanos_ = 0;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPU_LANE_H_
