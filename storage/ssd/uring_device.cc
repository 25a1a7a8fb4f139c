#include "storage/ssd/uring_device.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::ssd {
namespace {

constexpr uint32_t kBuffersMax = 4096;          // registered pieces: 4 TiB of pool
constexpr uint32_t kRepeatsMax = 64;            // of one operation that is interrupted again and again
constexpr uint64_t kWakeData = UINT64_MAX - 1;  // liburing's own is UINT64_MAX

Device::Report ReportOf(const SegmentFiles& files) {
  Device::Report report{absl::StrCat("io_uring, ", files.direct() ? "direct I/O" : "buffered I/O"), {}, files.direct()};
  if (!files.direct()) report.warnings.push_back(files.WhyNotDirect());
  return report;
}

class UringDevice final : public Device {
 public:
  UringDevice(SegmentFiles files, io_uring ring, UniqueFd wake)
      : Device(ReportOf(files)), files_(std::move(files)), ring_(ring), wake_(std::move(wake)) {
    has_buffers_ = io_uring_register_buffers_sparse(&ring_, kBuffersMax) == 0;
    for (uint32_t i = 0; i < kDepth; ++i) free_.push_back(kDepth - 1 - i);
  }

  ~UringDevice() override {
    std::vector<Completion> dropped;
    while (in_flight() > 0) Wait(absl::InfiniteFuture(), &dropped);
    io_uring_queue_exit(&ring_);
  }

  void Submit(const Io& io) override {
    Enable();
    KVIST_CHECK(!free_.empty());
    const uint32_t index = free_.back();
    free_.pop_back();
    Operation& op = operations_[index];
    op = {io};
    const SegmentFiles::File file = io.kind == Io::Kind::kAllocate ? files_.Make(io.segment) : files_.Open(io.segment);
    op.fd = file.fd;
    if (file.error != 0) {
      End(index, file.error);
      return;
    }
    Prepare(index);
  }

  void Kick() override {
    Enable();
    const int result = io_uring_submit(&ring_);
    KVIST_CHECK(result >= 0 || result == -EINTR || result == -EBUSY || result == -EAGAIN);  // the next Wait tries again
  }

  void Wait(absl::Time until, std::vector<Completion>* ended) override {
    Enable();
    const size_t before = ended->size();
    bool woken = false;
    while (true) {
      Take(ended);
      const bool enough = ended->size() > before || woken || MonotonicNow() >= until;
      Enter(enough ? absl::InfinitePast() : until);
      woken = Reap() || woken;
      Take(ended);
      if (enough || ended->size() > before || woken) return;
    }
  }

  bool HasNews() const override {
    return !ended_.empty() || io_uring_cq_ready(&ring_) > 0 || io_uring_sq_ready(&ring_) > 0 ||
           (IO_URING_READ_ONCE(*ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
  }

  void Wake() override {
    if (wake_asked_.exchange(true)) return;  // the owner hasn't seen the last one yet
    const uint64_t one = 1;
    KVIST_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
  }

  uint32_t depth() const override { return kDepth; }
  void Remove(uint32_t segment) override { files_.Remove(segment); }

  absl::Status Register(std::span<std::byte> piece) override {
    Enable();
    if (!has_buffers_)
      return absl::ResourceExhaustedError("registered buffers: this kernel has no sparse ones (Linux 5.19 has)");
    KVIST_CHECK(piece.size() <= GiB(1).value);
    if (buffers_.size() == kBuffersMax) return absl::ResourceExhaustedError("registered buffers: all places are taken");
    const iovec vector{piece.data(), piece.size()};
    const __u64 no_tag = 0;
    const int registered =
        io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(buffers_.size()), &vector, &no_tag, 1);
    if (registered < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("registered buffers: ", std::strerror(-registered), ", ",
                                                       piece.size(),
                                                       " bytes: raise RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=infinity)"));
    }
    buffers_.push_back(piece);
    return absl::OkStatus();
  }

 private:
  // kAllocate goes through all of them, the others have one.
  enum class Stage : uint8_t { kOnly, kSpace, kFile, kName };
  struct Operation {
    Io io;
    int fd = -1;
    uint64_t done = 0;  // bytes
    uint32_t repeats = 0;
    Stage stage = Stage::kOnly;
  };

  uint32_t in_flight() const { return kDepth - static_cast<uint32_t>(free_.size()); }

  // The ring is made disabled and belongs to the thread that enables it: it needn't be the one that made it.
  void Enable() {
    if (enabled_) return;
    enabled_ = true;
    // Debian's liburing 2.3 declares io_uring_enable_rings and doesn't export it.
    if ((ring_.flags & IORING_SETUP_R_DISABLED) != 0)
      KVIST_CHECK(syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
  }

  void ArmWake() {
    if (wake_armed_) return;
    io_uring_sqe* sqe = Sqe();
    io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWakeData);
    wake_armed_ = true;
  }

  io_uring_sqe* Sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {  // more in flight than places: each operation has one, so this is resubmission within one Reap
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    KVIST_CHECK(sqe != nullptr);
    return sqe;
  }

  // The registered piece that holds all of it, or -1.
  int BufferOf(const std::byte* at, uint64_t size) const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (at >= buffers_[i].data() && at + size <= buffers_[i].data() + buffers_[i].size()) return static_cast<int>(i);
    }
    return -1;
  }

  void Prepare(uint32_t index) {
    Operation& op = operations_[index];
    io_uring_sqe* sqe = Sqe();
    switch (op.io.kind) {
      case Io::Kind::kRead:
      case Io::Kind::kWrite: {
        std::byte* at = op.io.bytes.data() + op.done;
        const auto size = static_cast<unsigned>(op.io.bytes.size() - op.done);
        const uint64_t offset = op.io.offset.value + op.done;
        const int buffer = BufferOf(at, size);
        const bool read = op.io.kind == Io::Kind::kRead;
        if (buffer >= 0) {
          read ? io_uring_prep_read_fixed(sqe, op.fd, at, size, offset, buffer)
               : io_uring_prep_write_fixed(sqe, op.fd, at, size, offset, buffer);
        } else {
          read ? io_uring_prep_read(sqe, op.fd, at, size, offset) : io_uring_prep_write(sqe, op.fd, at, size, offset);
        }
        break;
      }
      case Io::Kind::kSync: io_uring_prep_fsync(sqe, op.fd, IORING_FSYNC_DATASYNC); break;
      case Io::Kind::kAllocate:
        if (op.stage == Stage::kOnly) op.stage = Stage::kSpace;
        if (op.stage == Stage::kSpace) {
          io_uring_prep_fallocate(sqe, op.fd, 0, 0, static_cast<off_t>(files_.segment_bytes().value));
        } else {
          io_uring_prep_fsync(sqe, op.stage == Stage::kFile ? op.fd : files_.directory_fd(), 0);
        }
        break;
    }
    io_uring_sqe_set_data64(sqe, index);
  }

  void Enter(absl::Time until) {
    ArmWake();
    int result = 0;
    if (until == absl::InfinitePast()) {
      result = io_uring_submit_and_get_events(&ring_);
    } else {
      const absl::Duration left = until - MonotonicNow();
      io_uring_cqe* cqe = nullptr;
      if (left >= absl::Hours(1)) {
        result = io_uring_submit_and_wait(&ring_, 1);
      } else {
        const int64_t nanos = std::max<int64_t>(absl::ToInt64Nanoseconds(left), 0);
        __kernel_timespec time{nanos / 1'000'000'000, nanos % 1'000'000'000};
        result = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &time, nullptr);
      }
    }
    // ETIME is the time, EINTR a signal, EBUSY and EAGAIN go by themselves when ends are taken.
    KVIST_CHECK(result >= 0 || result == -ETIME || result == -EINTR || result == -EBUSY || result == -EAGAIN);
  }

  // Takes what the kernel has ended; whether somebody has woken us.
  bool Reap() {
    bool woken = false;
    io_uring_cqe* cqes[64];
    while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes, 64)) {
      for (unsigned i = 0; i < count; ++i) {
        if (cqes[i]->user_data == kWakeData) {
          wake_armed_ = false;
          uint64_t times = 0;
          KVIST_CHECK(read(wake_.get(), &times, sizeof times) == sizeof times || errno == EAGAIN);
          wake_asked_.store(false);  // whoever wakes from here on writes again
          woken = true;
        } else if (cqes[i]->user_data < kDepth) {
          Arrived(static_cast<uint32_t>(cqes[i]->user_data), cqes[i]->res);
        }
      }
      io_uring_cq_advance(&ring_, count);
    }
    return woken;
  }

  void Arrived(uint32_t index, int result) {
    Operation& op = operations_[index];
    if (result == -EINTR || result == -EAGAIN) {
      if (++op.repeats > kRepeatsMax) return End(index, EIO);
      return Prepare(index);
    }
    if (op.io.kind == Io::Kind::kAllocate) return ArrivedAllocate(index, result);
    if (result < 0) return End(index, -result);
    if (op.io.kind == Io::Kind::kSync) return End(index, 0);
    op.done += static_cast<uint64_t>(result);
    if (op.done == op.io.bytes.size()) return End(index, 0);
    if (result == 0) return End(index, op.io.kind == Io::Kind::kRead ? ENODATA : EIO);
    Prepare(index);  // the rest
  }

  void ArrivedAllocate(uint32_t index, int result) {
    Operation& op = operations_[index];
    // A file system without fallocate: the file gets its length, and a full disk is found when it is written.
    if (op.stage == Stage::kSpace && result == -EOPNOTSUPP &&
        ftruncate(op.fd, static_cast<off_t>(files_.segment_bytes().value)) == 0)
      result = 0;
    if (result < 0) return End(index, -result);
    if (op.stage == Stage::kName) return End(index, 0);
    op.stage = op.stage == Stage::kSpace ? Stage::kFile : Stage::kName;
    Prepare(index);
  }

  void End(uint32_t index, int error) {
    ended_.push_back({operations_[index].io.tag, error});
    free_.push_back(index);
  }
  void Take(std::vector<Completion>* ended) {
    ended->insert(ended->end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

  SegmentFiles files_;
  io_uring ring_;
  UniqueFd wake_;
  bool wake_armed_ = false;
  std::atomic<bool> wake_asked_{false};
  bool enabled_ = false;
  bool has_buffers_ = false;
  std::vector<std::span<std::byte>> buffers_;
  Operation operations_[kDepth];
  std::vector<uint32_t> free_;
  std::vector<Completion> ended_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeUringDevice(SegmentFiles&& files) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoStatus("io_uring: eventfd", errno);
  // Ends are worked off when the owner asks for them, not by interrupting it, and a flag in memory says that there are some (Linux 6.1); older
  // kernels don't know all of that.
  constexpr unsigned kBest =
      IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  io_uring ring;
  int result = -EINVAL;
  for (const unsigned flags : {kBest, 0U}) {
    result = io_uring_queue_init(Device::kDepth + 8, &ring, flags);
    if (result != -EINVAL) break;
  }
  if (result != 0) {
    return absl::UnavailableError(absl::StrCat(
        "io_uring: ", std::strerror(-result),
        result == -ENOMEM                       ? ": raise RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=infinity)"
        : result == -ENOSYS || result == -EPERM ? ": allow it (kernel.io_uring_disabled=0, the container's seccomp profile)"
                                                : ""));
  }
  return std::make_unique<UringDevice>(std::move(files), ring, std::move(wake));
}

}  // namespace kvist::ssd
