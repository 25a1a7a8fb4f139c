#ifndef KVIST_TESTS_BENCH_TRACES_H_
#define KVIST_TESTS_BENCH_TRACES_H_

#include <filesystem>

#include "absl/status/statusor.h"

namespace kvist::bench {

// ../shared/traces of the working directory or of one above it. Errors: NotFound  there is none.
absl::StatusOr<std::filesystem::path> TraceFolder();

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_TRACES_H_
