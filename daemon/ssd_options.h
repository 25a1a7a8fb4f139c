#ifndef KVIST_DAEMON_SSD_OPTIONS_H_
#define KVIST_DAEMON_SSD_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/options.h"
#include "storage/ssd/store.h"

namespace kvist::daemon {

// A device has as many segments as that, within these bounds: a start wastes the rest of one, and what is given back is given back whole.
inline constexpr uint64_t kSegments = 16;
inline constexpr Bytes kSegmentBytes = MiB(256);
inline constexpr Bytes kSegmentBytesMin = MiB(16);
inline constexpr uint64_t kSegmentsMin = 4;  // one is written, one made ready, one given back

// What [ssd] says, as the store wants it: directories apart, and a capacity, by default a tenth of what their file systems have free and
// the tier has there already. Makes nothing.
// Errors: ResourceExhausted  there isn't enough room for the smallest tier; says what to do.
//         Those of asking the file systems.
absl::StatusOr<ssd::StoreOptions> StoreOptionsOf(const Options& options);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SSD_OPTIONS_H_
