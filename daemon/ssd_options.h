#ifndef KVIST_DAEMON_SSD_OPTIONS_H_
#define KVIST_DAEMON_SSD_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/options.h"
#include "storage/ssd/store.h"

namespace kvist::daemon {

// A new device has as many segments as that, within these bounds: what is given back is given back whole, two are kept free and one is being
// written (4 % of the capacity here; with 16 of them 16 %, and 1.6 points of hits on an agents' trace), and a start wastes the rest of one.
inline constexpr uint64_t kSegments = 64;
inline constexpr Bytes kSegmentBytes = MiB(256);
inline constexpr Bytes kSegmentBytesMin = MiB(8);  // a larger shard than that isn't kept in the smallest tier
inline constexpr Bytes kCapacityMin = MiB(64);

// What [ssd] says, as the store wants it: directories apart, and a capacity, by default a tenth of what their file systems have free and
// the tier has there already. Makes nothing.
// Errors: ResourceExhausted  there isn't enough room for the smallest tier; says what to do.
//         Those of asking the file systems.
absl::StatusOr<ssd::StoreOptions> StoreOptionsOf(const Options& options);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SSD_OPTIONS_H_
