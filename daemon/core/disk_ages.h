#ifndef KVIST_DAEMON_CORE_DISK_AGES_H_
#define KVIST_DAEMON_CORE_DISK_AGES_H_

#include <cstdint>

#include "storage/base/units.h"

namespace kvist::core {

// Tells chunks on disk that were used lately from others, with two bits for each (Chunk::disk_use). Time is what is written: a disk
// is used again in the order in which it was written, so a segment's turn comes about one turnover after it was.
//
// A period is a third of a turnover; of chunks that were used longer than four periods ago nothing is known.
// Threads: one.
class DiskAges {
 public:
  explicit DiskAges(Bytes capacity) : period_(capacity / 3) {}

  void Wrote(Bytes bytes) {
    written_ += bytes;
    if (written_ < period_) return;
    written_ = {};
    now_ = (now_ + 1) % kPeriods;
  }
  uint8_t now() const { return now_; }
  // What is found at the start was used before.
  uint8_t before() const { return (now_ + kPeriods - 1) % kPeriods; }
  // In this period: on the average not longer ago than a sixth of a turnover.
  bool Lately(uint8_t use) const { return use == now_; }

 private:
  static constexpr uint8_t kPeriods = 4;
  const Bytes period_;
  Bytes written_{};
  uint8_t now_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_DISK_AGES_H_
