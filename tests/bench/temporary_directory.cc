#include "tests/bench/temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "storage/base/status.h"

namespace kvist::bench {

absl::StatusOr<TemporaryDirectory> TemporaryDirectory::Create() {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error) / "kvist-bench-XXXXXX";
  if (error) return ErrnoStatus("finding the directory for temporary files", error.value());
  if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus("mkdtemp " + path, errno);
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvist::bench
