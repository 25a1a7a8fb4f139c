#include "storage/ssd/thread_device.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace kvist::ssd {
namespace {

template <class Call>
int Repeat(Call call) {
  int result;
  do { result = call(); } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

int Transfer(const Io& io, int fd) {
  size_t done = 0;
  while (done < io.bytes.size()) {
    std::byte* at = io.bytes.data() + done;
    const size_t size = io.bytes.size() - done;
    const auto offset = static_cast<off_t>(io.offset.value + done);
    const ssize_t n = io.kind == Io::Kind::kRead ? pread(fd, at, size, offset) : pwrite(fd, at, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return io.kind == Io::Kind::kRead ? ENODATA : EIO;
    done += static_cast<size_t>(n);
  }
  return 0;
}

Device::Report ReportOf(const SegmentFiles& files, uint32_t threads, std::vector<std::string> warnings) {
  if (!files.direct()) warnings.push_back(files.WhyNotDirect());
  return {absl::StrCat(threads, " threads, ", files.direct() ? "direct I/O" : "buffered I/O"), std::move(warnings),
          files.direct()};
}

class ThreadDevice final : public Device {
 public:
  ThreadDevice(SegmentFiles files, uint32_t threads, std::vector<std::string> warnings)
      : Device(ReportOf(files, threads, std::move(warnings))), files_(std::move(files)) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that the process has for them
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back(&ThreadDevice::Work, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~ThreadDevice() override {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
      work_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const Io& io) override {
    absl::MutexLock lock(&mutex_);
    KVIST_CHECK(in_flight_ < kDepth);
    ++in_flight_;
    queue_.push_back(io);
    work_.Signal();
  }

  void Kick() override {}

  void Wait(absl::Time until, std::vector<Completion>* ended) override {
    absl::MutexLock lock(&mutex_);
    while (!Returns() && !news_.WaitWithTimeout(&mutex_, until - MonotonicNow())) {}
    woken_ = false;
    in_flight_ -= static_cast<uint32_t>(ended_.size());
    ended->insert(ended->end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

  void Wake() override {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
    news_.Signal();
  }

  uint32_t depth() const override { return kDepth; }
  void Remove(uint32_t segment) override { files_.Remove(segment); }
  absl::Status Register(std::span<std::byte>) override { return absl::OkStatus(); }  // nothing to gain here

 private:
  bool Returns() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return woken_ || !ended_.empty(); }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); }

  void Work() {
    pthread_setname_np(pthread_self(), "kvist-ssd-io");
    while (true) {
      Io io;
      {
        absl::MutexLock lock(&mutex_);
        while (!HasWork()) work_.Wait(&mutex_);
        if (queue_.empty()) return;
        io = queue_.front();
        queue_.pop_front();
      }
      const int error = Do(io);
      absl::MutexLock lock(&mutex_);
      ended_.push_back({io.tag, error});
      news_.Signal();
    }
  }

  int Do(const Io& io) {
    const SegmentFiles::File file = io.kind == Io::Kind::kAllocate ? files_.Make(io.segment) : files_.Open(io.segment);
    if (file.error != 0) return file.error;
    switch (io.kind) {
      case Io::Kind::kRead:
      case Io::Kind::kWrite: return Transfer(io, file.fd);
      case Io::Kind::kSync: return Repeat([&] { return fdatasync(file.fd); });
      case Io::Kind::kAllocate: break;
    }
    const auto bytes = static_cast<off_t>(files_.segment_bytes().value);
    int error = Repeat([&] { return fallocate(file.fd, 0, 0, bytes); });
    // A file system without fallocate: the file gets its length, and a full disk is found when it is written.
    if (error == EOPNOTSUPP) error = Repeat([&] { return ftruncate(file.fd, bytes); });
    if (error == 0) error = Repeat([&] { return fsync(file.fd); });
    return error != 0 ? error : Repeat([&] { return fsync(files_.directory_fd()); });
  }

  SegmentFiles files_;
  absl::Mutex mutex_;
  absl::CondVar work_;  // HasWork
  absl::CondVar news_;  // Returns
  std::deque<Io> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Completion> ended_ ABSL_GUARDED_BY(mutex_);
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Device> MakeThreadDevice(SegmentFiles&& files, uint32_t threads, std::vector<std::string> warnings) {
  return std::make_unique<ThreadDevice>(std::move(files), threads, std::move(warnings));
}

}  // namespace kvist::ssd
