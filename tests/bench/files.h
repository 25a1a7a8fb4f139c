#ifndef KVIST_TESTS_BENCH_FILES_H_
#define KVIST_TESTS_BENCH_FILES_H_

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::bench {

// A directory on the disk that is measured, removed at the end with what is in it.
class Files {
 public:
  // `below`: where; empty: in the system's directory for temporary files.
  explicit Files(const std::string& below)
      : path_((below.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(below)) /
              "kvist-bench-XXXXXX") {}
  absl::Status Create() {
    std::string path = path_.string();
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(absl::StrCat("making ", path), errno);
    path_ = path;
    made_ = true;
    return absl::OkStatus();
  }
  ~Files() {
    std::error_code ignored;
    if (made_) std::filesystem::remove_all(path_, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  bool made_ = false;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_FILES_H_
