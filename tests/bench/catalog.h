#ifndef KVIST_TESTS_BENCH_CATALOG_H_
#define KVIST_TESTS_BENCH_CATALOG_H_

#include "absl/status/status.h"
#include "tests/bench/report.h"
#include "tests/bench/settings.h"

namespace kvist::bench {

// What the SSD tier's catalog costs: from opening one of a million chunks to its first and to all rows, beside a plain iteration over the
// same database; commits that are flushed, beside as many bytes that are appended to a file and flushed.
// Errors: as those of subcommands.h.
absl::Status RunCatalog(const Settings& settings, Report* report);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_CATALOG_H_
