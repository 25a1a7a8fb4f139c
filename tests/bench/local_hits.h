#ifndef KVIST_TESTS_BENCH_LOCAL_HITS_H_
#define KVIST_TESTS_BENCH_LOCAL_HITS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/bench/report.h"
#include "tests/bench/settings.h"

namespace kvist::bench {

// Hits of a prompt that is all in DRAM, by an engine of a kvistd whose remote store is down, beside one whose store answers: both up, one killed,
// one that hangs. `time`: for each of these three. Errors: as the subcommands'.
absl::Status MeasureLocalHits(const Settings& settings, absl::Duration time, Report* report);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_LOCAL_HITS_H_
