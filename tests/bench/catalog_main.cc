// kvist-catalog-bench [--quick]: RunCatalog alone, as a table; kvist-bench has it among others.
#include <cstdio>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "tests/bench/catalog.h"

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  kvist::bench::Settings settings;
  settings.quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  if (settings.quick) settings.time = absl::Milliseconds(100);
  kvist::bench::Report report{"catalog", {}};
  const absl::Status status = kvist::bench::RunCatalog(settings, &report);
  std::printf("%s\n", report.Table().c_str());
  if (!status.ok()) std::fprintf(stderr, "kvist-catalog-bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
