#ifndef KVIST_STORAGE_BASE_UNIQUE_FD_H_
#define KVIST_STORAGE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace kvist {

// Owns one file descriptor; closes it. Empty is -1.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_UNIQUE_FD_H_
