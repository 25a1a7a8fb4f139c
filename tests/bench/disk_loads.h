#ifndef KVIST_TESTS_BENCH_DISK_LOADS_H_
#define KVIST_TESTS_BENCH_DISK_LOADS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/bench/report.h"
#include "tests/bench/settings.h"

namespace kvist::bench {

// Cold reads through all of it: lookup, load and wait of a kvistd whose chunks are on disk, beside bare direct I/O on other parts of the
// same segment files. Errors: as the subcommands'.
absl::Status MeasureDiskLoads(const Settings& settings, absl::Duration time, size_t pairs_min, Report* report);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_DISK_LOADS_H_
