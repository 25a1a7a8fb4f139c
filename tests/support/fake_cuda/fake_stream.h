#ifndef KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_STREAM_H_
#define KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace kvist::fake_cuda {

// What is common to a device's streams.
struct DeviceState {
  std::atomic<bool> lost{false};
};

// A stream: operations one after the other, on a thread of its own.
class FakeStream {
 public:
  FakeStream(DeviceState* device, uint64_t seed, uint32_t delay_us);
  ~FakeStream();  // what is queued is dropped; what runs ends soon

  // Appends. An operation that waits asks `ended()` now and then.
  void Push(std::function<void()> operation);
  bool idle();
  void Synchronize();
  // Whether waiting makes no sense any more.
  bool ended() const { return stopping_.load() || device_->lost.load(); }

 private:
  void Run();

  DeviceState* device_;
  std::mt19937_64 random_;
  const uint32_t delay_us_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_;
  bool running_ = false;
  std::thread thread_;
};

// Passed by a stream, so and so often.
struct FakeEvent {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> passed{0};
  std::atomic<int64_t> at_nanos{0};
};

}  // namespace kvist::fake_cuda

#endif  // KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_STREAM_H_
