#ifndef KVIST_CUDA_BATCH_ENTRIES_H_
#define KVIST_CUDA_BATCH_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/copy_engine.h"
#include "cuda/gpu.h"

namespace kvist::cuda {

// Entries of one batch, as the driver wants them.
struct BatchEntries {
  std::vector<driver::Address> to, from;
  std::vector<size_t> sizes;
  uint64_t bytes = 0;

  size_t count() const { return sizes.size(); }
  void Add(driver::Address to_address, driver::Address from_address, size_t size) {
    to.push_back(to_address);
    from.push_back(from_address);
    sizes.push_back(size);
    bytes += size;
  }
  // The same, or a longer last one where that goes on on both sides.
  void Join(driver::Address to_address, driver::Address from_address, size_t size);
  // Those from `first` on, which are no longer here.
  BatchEntries TakeFrom(size_t first);
  void Clear() { to.clear(), from.clear(), sizes.clear(), bytes = 0; }  // keeps their room for the next batch
};

// A stream of kvistd's for copies of that direction: loads have the device's highest priority, stores its lowest. Context current. Errors: those of
// the driver.
absl::StatusOr<driver::Stream> MakeStream(const Gpu& gpu, Direction direction);

// Has the device's DMA copy them when the stream comes to it, in any order; after an error some may be under way. Context current.
// Errors: those of the driver.
absl::Status CopyByDma(const Gpu& gpu, BatchEntries& entries, driver::Stream stream);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_BATCH_ENTRIES_H_
