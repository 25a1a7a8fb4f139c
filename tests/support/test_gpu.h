#ifndef KVIST_TESTS_SUPPORT_TEST_GPU_H_
#define KVIST_TESTS_SUPPORT_TEST_GPU_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/driver/driver.h"

namespace kvist::test {

// A GPU as an engine uses it: through the driver that this process finds, in tests without a GPU the fake one (it has to be in
// LD_LIBRARY_PATH when the process starts), whose memory the host can look at, too. What fails aborts the test.
class TestGpu {
 public:
  explicit TestGpu(int ordinal = 0);
  ~TestGpu();
  TestGpu(const TestGpu&) = delete;
  TestGpu& operator=(const TestGpu&) = delete;

  std::byte* Allocate(size_t size);
  void Free(std::byte* memory);
  // What an allocation and its GPU are called in other processes.
  struct Name {
    cuda::driver::Uuid gpu;
    cuda::driver::IpcMemHandle allocation;
  };
  Name NameOf(std::byte* memory) const;
  // Between device memory and the host, at once.
  void Write(std::byte* to, const void* from, size_t size);
  void Read(void* to, const std::byte* from, size_t size);
  // Host memory that the GPU reaches itself.
  void Pin(void* memory, size_t size);
  void Unpin(void* memory);

  cuda::driver::Stream MakeStream();
  void End(cuda::driver::Stream stream);
  // Given to a stream, done when it comes to it. Words are of `words`.
  void Copy(cuda::driver::Stream stream, void* to, const void* from, size_t size);
  void AwaitWord(cuda::driver::Stream stream, uint32_t word, uint64_t value);
  void Synchronize(cuda::driver::Stream stream);
  bool Idle(cuda::driver::Stream stream) const;
  bool IdleSoon(cuda::driver::Stream stream, int64_t within_us) const;

  std::atomic<uint64_t>& word(uint32_t i) { return words_[i]; }

 private:
  static constexpr uint32_t kWords = 512;
  std::shared_ptr<const cuda::driver::Driver> driver_;
  cuda::driver::Device device_ = 0;
  cuda::driver::Context context_ = nullptr;
  std::unique_ptr<std::atomic<uint64_t>[]> words_;
  cuda::driver::Address words_there_ = 0;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_TEST_GPU_H_
