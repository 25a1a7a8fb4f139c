#include "tests/bench/raw_disk.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "storage/base/status.h"
#include "storage/base/xxh3.h"
#include "tests/bench/slices.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kDepthMax = 256;
constexpr uint64_t kSync = UINT64_MAX - 1;

void Checksum(const std::byte* at, uint64_t bytes, uint64_t run) {
  uint64_t all = 0;
  for (uint64_t i = 0; run > 0 && i + run <= bytes; i += run) all ^= Xxh3OfFar({at + i, run}, i);
  asm volatile("" : : "r"(all));  // it is wanted
}

}  // namespace

absl::StatusOr<std::unique_ptr<RawDisk>> RawDisk::Create(std::span<std::byte> memory) {
  std::unique_ptr<RawDisk> disk(new RawDisk);
  int error = io_uring_queue_init(kDepthMax + 8, &disk->ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  if (error == -EINVAL) error = io_uring_queue_init(kDepthMax + 8, &disk->ring_, 0);
  if (error != 0) {
    disk->ring_.ring_fd = -1;
    return ErrnoStatus("io_uring_queue_init", -error);
  }
  const iovec vector{memory.data(), memory.size()};
  error = io_uring_register_buffers(&disk->ring_, &vector, 1);
  if (error != 0) return ErrnoStatus("io_uring_register_buffers", -error);
  disk->memory_ = memory;
  return disk;
}

RawDisk::~RawDisk() {
  if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
}

absl::StatusOr<double> RawDisk::Run(const Job& job) {
  const double began = Now();
  std::vector<std::byte*> places(job.extents.size());
  size_t next = 0;
  uint32_t in_flight = 0;
  uint64_t memory_at = 0;
  uint64_t unsynced = 0;
  bool syncing = false;
  bool last_sync = job.sync_bytes == 0;
  int error = 0;
  while (true) {
    while (next < job.extents.size() && in_flight < std::min(job.depth, kDepthMax)) {
      const Extent& extent = job.extents[next];
      if (memory_at + extent.bytes > memory_.size()) memory_at = 0;
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      std::byte* at = memory_.data() + memory_at;
      const auto bytes = static_cast<unsigned>(extent.bytes);
      if (job.write) Checksum(at, extent.bytes, job.checksum_bytes);
      places[next] = at;
      job.write ? io_uring_prep_write_fixed(sqe, job.fd, at, bytes, extent.offset, 0)
                : io_uring_prep_read_fixed(sqe, job.fd, at, bytes, extent.offset, 0);
      io_uring_sqe_set_data64(sqe, next++);
      memory_at += extent.bytes;
      ++in_flight;
    }
    const bool all_done = next == job.extents.size() && in_flight == 0;
    if (!syncing && !last_sync && (unsynced >= job.sync_bytes || all_done)) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      io_uring_prep_fsync(sqe, job.fd, IORING_FSYNC_DATASYNC);
      io_uring_sqe_set_data64(sqe, kSync);
      syncing = true;
      unsynced = 0;
      last_sync = all_done;
    }
    if (all_done && !syncing) break;
    const int entered = io_uring_submit_and_wait(&ring_, 1);
    if (entered < 0 && entered != -EINTR) return ErrnoStatus("io_uring_enter", -entered);
    io_uring_cqe* cqes[64];
    while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes, 64)) {
      for (unsigned i = 0; i < count; ++i) {
        if (cqes[i]->user_data == kSync) {
          syncing = false;
          if (cqes[i]->res < 0) error = -cqes[i]->res;
          continue;
        }
        --in_flight;
        const Extent& extent = job.extents[cqes[i]->user_data];
        if (cqes[i]->res != static_cast<int>(extent.bytes)) error = cqes[i]->res < 0 ? -cqes[i]->res : EIO;
        unsynced += extent.bytes;
        if (!job.write) Checksum(places[cqes[i]->user_data], extent.bytes, job.checksum_bytes);
      }
      io_uring_cq_advance(&ring_, count);
    }
  }
  if (error != 0) return ErrnoStatus(job.write ? "raw write" : "raw read", error);
  return Now() - began;
}

}  // namespace kvist::bench
