#ifndef KVIST_TESTS_SUPPORT_SHARED_FILE_H_
#define KVIST_TESTS_SUPPORT_SHARED_FILE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <type_traits>

namespace kvist::test {

// What several processes share in that file, zeros when it is made; never unmapped.
template <class T>
T* SharedFile(const std::string& path) {
  static_assert(std::is_standard_layout_v<T>);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(T)) != 0) std::abort();
  void* at = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED) std::abort();
  return static_cast<T*>(at);
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SHARED_FILE_H_
