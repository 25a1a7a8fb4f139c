#ifndef KVIST_TESTS_BENCH_TEMPORARY_DIRECTORY_H_
#define KVIST_TESTS_BENCH_TEMPORARY_DIRECTORY_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace kvist::bench {

// An empty directory of our own; it and all that is in it goes with this.
class TemporaryDirectory {
 public:
  // Errors: those of mkdtemp.
  static absl::StatusOr<TemporaryDirectory> Create();
  TemporaryDirectory(TemporaryDirectory&& o) noexcept : path_(std::exchange(o.path_, "")) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_TEMPORARY_DIRECTORY_H_
