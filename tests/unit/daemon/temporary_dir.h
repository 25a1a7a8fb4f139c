#ifndef KVIST_TESTS_UNIT_DAEMON_TEMPORARY_DIR_H_
#define KVIST_TESTS_UNIT_DAEMON_TEMPORARY_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "storage/base/check.h"

namespace kvist {

// A fresh directory; it and what is in it go with this object. Its name is short enough for sockets.
class TemporaryDir {
 public:
  TemporaryDir() {
    char name[] = "/tmp/kvist-test-XXXXXX";
    KVIST_CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~TemporaryDir() { std::filesystem::remove_all(path_); }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvist

#endif  // KVIST_TESTS_UNIT_DAEMON_TEMPORARY_DIR_H_
