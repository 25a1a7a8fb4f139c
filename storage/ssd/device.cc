#include "storage/ssd/device.h"

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/ssd/segment_files.h"
#include "storage/ssd/thread_device.h"
#include "storage/ssd/uring_device.h"

namespace kvist::ssd {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options) {
  if (options.threads == 0) return absl::InvalidArgumentError("threads: 0; at least one has to do the I/O");
  KVIST_ASSIGN_OR_RETURN(SegmentFiles files,
                         SegmentFiles::Create(options.directory, options.segment_bytes, options.keep_free));
  std::vector<std::string> warnings;
  if (options.io_uring) {
    absl::StatusOr<std::unique_ptr<Device>> ring = MakeUringDevice(std::move(files));
    if (ring.ok()) return ring;
    warnings.push_back(absl::StrCat("the SSD tier works with ", options.threads,
                                    " threads instead of io_uring: ", ring.status().message()));
  }
  // Untouched where there is no ring.
  return MakeThreadDevice(std::move(files), options.threads, std::move(warnings));  // NOLINT(bugprone-use-after-move)
}

}  // namespace kvist::ssd
