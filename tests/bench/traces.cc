#include "tests/bench/traces.h"

namespace kvist::bench {

absl::StatusOr<std::filesystem::path> TraceFolder() {
  namespace fs = std::filesystem;
  for (fs::path at = fs::current_path();; at = at.parent_path()) {
    if (fs::path folder = at / "shared" / "traces"; fs::is_directory(folder)) return folder;
    if (at == at.parent_path()) break;
  }
  return absl::NotFoundError("no shared/traces here or in a folder above: name a trace with --trace FILE");
}

}  // namespace kvist::bench
