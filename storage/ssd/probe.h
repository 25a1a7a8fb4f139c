#ifndef KVIST_STORAGE_SSD_PROBE_H_
#define KVIST_STORAGE_SSD_PROBE_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/ssd/device.h"
#include "storage/ssd/io_queue.h"

namespace kvist::ssd {

// How many bytes a device wants in flight: twice the fewest with which it is about as fast as with any number, or as many as it does in a few
// milliseconds if that is more. Fewer leave it idle
// whenever its owner has something else to do, more queue where no urgent read can pass them.
struct ProbeOptions {
  uint32_t segment = 0;  // whose file is used
  // It is a free segment: made when it isn't there, and overwritten. Else there is data in it, and it is only read.
  bool may_write = false;
  // For all of it, or half as much again on a disk that is slow to write; a slow one is measured as far as that goes.
  absl::Duration time = absl::Milliseconds(200);
};
struct ProbeResult {
  IoQueue::Options queue;  // with the budgets that were found; the default for writes without may_write
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;  // 0: not measured
};
// Errors: what the device said of the first operation that failed. Threads: the device's owner, who has nothing in flight there.
absl::StatusOr<ProbeResult> Probe(Device* device, Bytes segment_bytes, const ProbeOptions& options);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_PROBE_H_
