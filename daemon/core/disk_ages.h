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
// Periods are counted from 0, which is the one that ran when the last daemon ended and goes on; those before have numbers below.
// Threads: one.
class DiskAges {
 public:
  explicit DiskAges(Bytes capacity) : length_(capacity / 12) {}

  // Whether a new period begins with that.
  bool Wrote(Bytes bytes) {
    written_ += bytes;
    if (written_ < length_) return false;
    written_ = {};
    ++period_;
    return true;
  }
  // When the last daemon ended at least so much of period 0 was over.
  void GoOn(Bytes written) {
    if (period_ != 0 || written <= before_) return;
    written_ += written - before_;
    before_ = written;
  }

  int32_t period() const { return period_; }
  Bytes written() const { return written_; }  // in it
  uint8_t now() const { return InBits(period_); }
  // Not lately, but as late as that: of what is found at the start, or written long after its last use, that is all that is known. When its turn
  // comes that still is less than sixteen periods ago.
  uint8_t before() const { return InBits(period_ - kLately - 1); }
  // In this period or the two before: on the average not longer ago than a fifth of a turnover. A conversation whose last answer ended by itself
  // waits for a person, who mostly comes later than a tool's result or not at all: one period less.
  bool Lately(uint8_t use, StopReason stop) const { return Ago(use) <= (stop == StopReason::kStop ? kLately - 1 : kLately); }
  // The period of a use that was no longer ago than fifteen.
  int32_t PeriodOf(uint8_t use) const { return period_ - Ago(use); }
  // The later one of a use and another in `period`.
  uint8_t Later(uint8_t use, int32_t period) const {
    return period <= period_ && period_ - period < Ago(use) ? InBits(period) : use;
  }

 private:
  static constexpr int kPeriods = 16;
  static constexpr int kLately = 2;  // periods before this one

  static uint8_t InBits(int32_t period) { return static_cast<uint8_t>(static_cast<uint32_t>(period) % kPeriods); }
  int Ago(uint8_t use) const { return (now() + kPeriods - use) % kPeriods; }

  const Bytes length_;
  Bytes written_{};
  Bytes before_{};  // of it: by the last daemon
  int32_t period_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_DISK_AGES_H_
