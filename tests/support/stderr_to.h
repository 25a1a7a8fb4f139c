#ifndef KVIST_TESTS_SUPPORT_STDERR_TO_H_
#define KVIST_TESTS_SUPPORT_STDERR_TO_H_

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace kvist::test {

// stderr goes to a file while this lives; a daemon that is started meanwhile inherits it.
class StderrTo {
 public:
  explicit StderrTo(const std::string& path) : before_(::dup(STDERR_FILENO)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    REQUIRE(file >= 0);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  ~StderrTo() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;

 private:
  int before_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_STDERR_TO_H_
