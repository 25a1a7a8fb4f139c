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
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cuda/batch_entries.h"
#include "cuda/copy_kernel.h"
#include "cuda/gpu.h"
#include "cuda/path_choice.h"
#include "cuda/running_copy.h"
#include "cuda/staged_path.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// One direction of a GPU's copies: a stream, and the batches on it that haven't ended, in their order. A batch of small pieces may go another way
// (StagedPath), and be over before those in front of it: its units are given back in their turn.
//
// A batch: Put its units -> Send -> in flight -> Collect gives the units back, with what came of them.
// Threads: one, with the GPU's context current.
class GpuLane {
 public:
  // Each batch costs the bus some 8 us on an H200, and each entry a processor 0.4 to 0.8 us of handing it over: of a batch less than others in
  // flight have the bus busy.
  static constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
  static constexpr size_t kDmaEntries = 128;
  static constexpr size_t kStagedEntries = CopyKernel::kExtentsMax;
  // In flight at most, while there is more to do: a batch is handed over while another is on the bus.
  static constexpr uint64_t kWindow = 2 * kBatchBytes;

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
  // As GpuEngineOptions has them; the kernel outlives the lane.
  struct SmallPieces {
    const CopyKernel* kernel = nullptr;
    PathChoice::Options choice;
    std::function<bool()> slots_pinned;
    std::function<void(const absl::Status&)> no_kernel;
    std::function<void(Direction, const PathChoice::Found&)> found;
  };
  void UseKernel(SmallPieces small);
  void Close();  // nothing is in flight

  // Adds a unit to the batch that is being made; sends that first when the unit had better not wait for it, or after when it is full. With little
  // in flight a small batch is full: while its entries are handed over nothing is on the bus. True: one was sent, which may have taken some 100 us.
  bool Put(UnitOfCopy unit);
  void Send();
  // There is no unit to be Put now: what ends before the next one is Sent says nothing of how long that takes.
  void Rest() { at_work_ = false; }
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
    bool timed = false;                    // something is to be learned from it
    driver::Event began = nullptr;         // of one that is timed
    bool at_work = false;                  // the lane was, since the one before it was sent
    driver::Event event = nullptr;         // its end
    std::optional<PathChoice::Path> path;  // that was chosen; nothing: there was no choice
    Bytes piece;                           // on average
    Bytes moved;                           // without what is absent
    StagedPath::Batch staged;
    absl::Status status;  // of handing it over
    int64_t sent_nanos = 0;
  };
  void Expand(const UnitOfCopy& unit);
  absl::Status HandOver();
  // Has the entries copied; all of it is over when all is that is then on the stream.
  absl::StatusOr<driver::Stream> CopyEntries();
  absl::StatusOr<driver::Stream> Dma();
  void StagingFailed(const absl::Status& why);
  size_t EntriesMost() const;
  PathChoice::Path Choose();
  bool MakeStaged();
  // Passed by the stream when it comes to it; timed when the batch is to teach something. Errors: those of the driver.
  absl::Status Record(driver::Stream stream, driver::Event* event);
  std::vector<driver::Event>& FreeEvents(bool timed) { return timed ? free_timed_events_ : free_events_; }
  void Learn(const Batch& batch);
  std::optional<absl::Duration> Elapsed(driver::Event from, driver::Event to) const;

  Gpu* gpu_ = nullptr;
  Direction direction_ = Direction::kLoad;
  driver::Stream stream_ = nullptr;
  SmallPieces small_;                   // without a kernel there is none
  std::optional<PathChoice> choice_;    // with one
  std::unique_ptr<StagedPath> staged_;  // from the first batch that goes that way
  bool staged_last_ = false;
  uint32_t staging_failed_ = 0;  // one time after the other
  bool at_work_ = false;         // since a batch was sent there has been something to do
  std::vector<driver::Event> free_events_, free_timed_events_;
  driver::Event last_end_ = nullptr;  // timed; of the batch that has ended last
  Batch open_;
  BatchEntries entries_;  // of open_
  std::deque<Batch> in_flight_;
  uint64_t bytes_ = 0;
  double bytes_per_nano_ = 10;  // lately; 10 GB/s until it is known
  int64_t last_end_nanos_ = 0;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPU_LANE_H_
