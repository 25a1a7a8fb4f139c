#ifndef KVIST_TESTS_BENCH_RAW_DISK_H_
#define KVIST_TESTS_BENCH_RAW_DISK_H_

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace kvist::bench {

// The limit of the disk: a loop that does nothing but keep direct I/O in flight, by io_uring with a registered buffer.
class RawDisk {
 public:
  // `memory`: what is written and read into, at most 1 GiB. Errors: those of io_uring.
  static absl::StatusOr<std::unique_ptr<RawDisk>> Create(std::span<std::byte> memory);
  ~RawDisk();

  struct Extent {
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
  };
  struct Job {
    int fd = -1;
    bool write = false;
    std::vector<Extent> extents{};  // in this order
    uint32_t depth = 1;             // in flight at the same time
    uint64_t checksum_bytes =
        0;                    // XXH3 over so many at a time, before they are written or when they have been read; 0: none
    uint64_t sync_bytes = 0;  // an fdatasync after so many, beside the writes that follow, and one at the end; 0: none
  };
  // Seconds that it took. Errors: of the disk; a short read or write is one.
  absl::StatusOr<double> Run(const Job& job);

 private:
  RawDisk() = default;
  io_uring ring_{};
  std::span<std::byte> memory_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_RAW_DISK_H_
