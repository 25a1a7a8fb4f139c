#ifndef KVIST_TESTS_SUPPORT_TEMP_DIR_H_
#define KVIST_TESTS_SUPPORT_TEMP_DIR_H_

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace kvist::test {

// A fresh folder, removed with all that is in it. Its name is short enough for sockets, and other users may enter it: tests run
// engines of theirs. Knows nothing of kvist, so that all kinds of tests can use it.
//
// Errors: ends the process, saying why, when no folder can be made.
class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "kvist-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr || ::chmod(path_.c_str(), 0755) != 0) {
      std::perror(path_.c_str());
      std::abort();
    }
  }
  TempDir(TempDir&& from) noexcept : path_(std::exchange(from.path_, {})) {}
  TempDir& operator=(TempDir&&) = delete;
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  // Of what is called `name` in it.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_TEMP_DIR_H_
