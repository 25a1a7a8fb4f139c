#ifndef KVIST_STORAGE_SSD_URING_DEVICE_H_
#define KVIST_STORAGE_SSD_URING_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "storage/ssd/device.h"
#include "storage/ssd/segment_files.h"

namespace kvist::ssd {

// A Device over io_uring: one ring, no thread of its own. Errors: Unavailable says why the system doesn't allow it; `files` is
// untouched then.
absl::StatusOr<std::unique_ptr<Device>> MakeUringDevice(SegmentFiles&& files);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_URING_DEVICE_H_
