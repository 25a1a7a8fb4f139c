#ifndef KVIST_TESTS_BENCH_WARM_RESTART_H_
#define KVIST_TESTS_BENCH_WARM_RESTART_H_

#include "absl/status/status.h"
#include "tests/bench/report.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {

// A kvistd that was killed: how much of what only its pool held is found again where a service manager keeps that (tests/support/fd_store.h),
// and how long it takes until all is loaded, beside reading it back from disk. Part of `restart`.
absl::Status MeasureWarmRestart(const Settings& settings, Report* report);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_WARM_RESTART_H_
