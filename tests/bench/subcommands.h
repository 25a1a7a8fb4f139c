#ifndef KVIST_TESTS_BENCH_SUBCOMMANDS_H_
#define KVIST_TESTS_BENCH_SUBCOMMANDS_H_

#include "absl/status/status.h"
#include "tests/bench/report.h"
#include "tests/bench/settings.h"

namespace kvist::bench {

// What kvist-bench can measure; each file says how. They start what they need, add their cases to the report and end it all.
// Errors: something didn't work, so that a figure is missing or means nothing. A missed goal is no error.
absl::Status RunCodec(const Settings& settings, Report* report);
absl::Status RunClear(const Settings& settings, Report* report);
absl::Status RunDirectory(const Settings& settings, Report* report);
absl::Status RunLookup(const Settings& settings, Report* report);
absl::Status RunRoundtrip(const Settings& settings, Report* report);
absl::Status RunCopy(const Settings& settings, Report* report);
absl::Status RunGpuCopy(const Settings& settings, Report* report);  // copy --device cuda
absl::Status RunOverhead(const Settings& settings, Report* report);
absl::Status RunRestart(const Settings& settings, Report* report);
absl::Status RunSsd(const Settings& settings, Report* report);
absl::Status RunRemote(const Settings& settings, Report* report);
absl::Status RunGranularity(const Settings& settings, Report* report);
absl::Status RunPolicy(const Settings& settings, Report* report);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_SUBCOMMANDS_H_
