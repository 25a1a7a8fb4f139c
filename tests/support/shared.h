#ifndef KVIST_TESTS_SUPPORT_SHARED_H_
#define KVIST_TESTS_SUPPORT_SHARED_H_

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <new>

namespace kvist::test {

// What this process and its children share.
template <class T>
class Shared {
 public:
  Shared() : memory_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    new (memory_) T;
  }
  Shared(const Shared&) = delete;
  ~Shared() { ::munmap(memory_, sizeof(T)); }
  T* operator->() const { return static_cast<T*>(memory_); }
  T& operator*() const { return *static_cast<T*>(memory_); }

 private:
  void* memory_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SHARED_H_
