#include "tests/support/fake_cuda/fake_stream.h"

#include <chrono>
#include <utility>

namespace kvist::fake_cuda {

FakeStream::FakeStream(DeviceState* device, uint64_t seed, uint32_t delay_us)
    : device_(device), random_(seed), delay_us_(delay_us), thread_([this] { Run(); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    operations_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::Push(std::function<void()> operation) {
  {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

bool FakeStream::idle() {
  const std::lock_guard lock(mutex_);
  return operations_.empty() && !running_;
}

void FakeStream::Synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || (operations_.empty() && !running_); });
}

void FakeStream::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !operations_.empty(); });
    if (stopping_) return;
    const std::function<void()> operation = std::move(operations_.front());
    operations_.pop_front();
    running_ = true;
    lock.unlock();
    if (delay_us_ > 0 && random_() % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % delay_us_));
    operation();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace kvist::fake_cuda
