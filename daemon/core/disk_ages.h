#ifndef KVIST_DAEMON_CORE_DISK_AGES_H_
#define KVIST_DAEMON_CORE_DISK_AGES_H_

#include <cstdint>

#include "daemon/core/hint.h"
#include "storage/base/units.h"

namespace kvist::core {

// Tells chunks on disk that were used lately from others, with four bits for each (Chunk::disk_use). Time is what is written: a disk
// is used again in the order in which it was written, so a segment's turn comes about one turnover after it was.
//
// A period is a twelfth of a turnover; of chunks that were used longer than sixteen periods ago nothing is known. Thirds were too coarse: on the
// agents' trace of reference/policy.md, of what was used in the last sixth of a turnover 9 in 10 are used again within one, in the next sixth 5 in 10, then 2.
// Threads: one.
class DiskAges {
 public:
  explicit DiskAges(Bytes capacity) : period_(capacity / 12) {}

  // Whether a new period begins with that.
  bool Wrote(Bytes bytes) {
    written_ += bytes;
    if (written_ < period_) return false;
    written_ = {};
    now_ = (now_ + 1) % kPeriods;
    return true;
  }
  uint8_t now() const { return now_; }
  // Not lately, but as late as that: of what is found at the start, or written long after its last use, that is all that is known. When its turn
  // comes that still is less than sixteen periods ago.
  uint8_t before() const { return (now_ + kPeriods - kLately - 1) % kPeriods; }
  // In this period or the two before: on the average not longer ago than a fifth of a turnover. A conversation whose last answer ended by itself
  // waits for a person, who mostly comes later than a tool's result or not at all: one period less.
  bool Lately(uint8_t use, StopReason stop) const {
    const int ago = (now_ + kPeriods - use) % kPeriods;
    return ago <= (stop == StopReason::kStop ? kLately - 1 : kLately);
  }

 private:
  static constexpr uint8_t kPeriods = 16;
  static constexpr uint8_t kLately = 2;  // periods before this one
  const Bytes period_;
  Bytes written_{};
  uint8_t now_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_DISK_AGES_H_
