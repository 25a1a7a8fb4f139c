#include "cuda/host_pins.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {

HostPins::~HostPins() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  const driver::Current current(gpu_->driver(), gpu_->context());
  absl::MutexLock lock(&mutex_);
  for (const std::span<std::byte> piece : pieces_) (void)gpu_->driver()->MemHostUnregister(piece.data());
}

void HostPins::Add(std::span<std::byte> memory, Bytes piece) {
  KVIST_CHECK(piece.value > 0);
  absl::MutexLock lock(&mutex_);
  wishes_.push_back({memory, piece});
  changed_.SignalAll();
}

void HostPins::Begin(const Gpu* gpu) {
  KVIST_CHECK(gpu_ == nullptr);
  gpu_ = gpu;
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "kvist-gpu-pin");
}

void HostPins::Run() {
  const driver::Current current(gpu_->driver(), gpu_->context());
  absl::MutexLock lock(&mutex_);
  for (;;) {
    while (!stopping_ && wishes_.empty()) changed_.Wait(&mutex_);
    if (stopping_) return;
    const Wish wish = wishes_.front();
    wishes_.pop_front();
    mutex_.Unlock();
    const absl::Time began = absl::Now();
    Bytes pinned;
    const absl::Status status = Pin(wish, &pinned);
    said_(status, pinned, absl::Now() - began);
    mutex_.Lock();
  }
}

absl::Status HostPins::Pin(const Wish& wish, Bytes* pinned) {
  for (size_t at = 0; at < wish.memory.size(); at += wish.piece.value) {
    const std::span<std::byte> piece = wish.memory.subspan(at, std::min<size_t>(wish.piece.value, wish.memory.size() - at));
    KVIST_RETURN_IF_ERROR(
        gpu_->driver().Check(gpu_->driver()->MemHostRegister(piece.data(), piece.size(),
                                                             driver::kHostRegisterPortable | driver::kHostRegisterDeviceMap),
                             "cuMemHostRegister"));
    *pinned += Bytes{piece.size()};
    pinned_.fetch_add(piece.size(), std::memory_order_relaxed);
    absl::MutexLock lock(&mutex_);
    pieces_.push_back(piece);
    if (stopping_) break;
  }
  return absl::OkStatus();
}

}  // namespace kvist::cuda
