#ifndef KVIST_STORAGE_BASE_LATENCY_HISTOGRAM_H_
#define KVIST_STORAGE_BASE_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace kvist {

// Durations counted in log-linear buckets: four to each power of two between 128 ns and 137 s, one below and one above. So a bucket's
// bounds are at most a quarter apart, and recording is two additions: whoever owns one may record on its hot path.
//
// Units:   nanoseconds; a bucket holds the durations above the bound before it and up to its own, inclusive.
// Threads: one. A reader on another thread gets a copy from the owner.
class LatencyHistogram {
 public:
  static constexpr uint32_t kPerOctave = 4;
  static constexpr uint32_t kFirstOctave = 7;  // up to 2^7 ns
  static constexpr uint32_t kLastOctave = 37;  // above 2^37 ns
  static constexpr uint32_t kBuckets = (kLastOctave - kFirstOctave) * kPerOctave + 2;

  static constexpr uint32_t BucketOf(int64_t nanos) {
    if (nanos <= int64_t{1} << kFirstOctave) return 0;
    const uint64_t below = static_cast<uint64_t>(nanos) - 1;
    const auto octave = static_cast<uint32_t>(std::bit_width(below)) - 1;
    if (octave >= kLastOctave) return kBuckets - 1;
    return 1 + (octave - kFirstOctave) * kPerOctave + static_cast<uint32_t>(below >> (octave - 2) & (kPerOctave - 1));
  }
  // The longest duration of a bucket; the last one has none.
  static constexpr int64_t UpperNanos(uint32_t bucket) {
    if (bucket == 0) return int64_t{1} << kFirstOctave;
    if (bucket >= kBuckets - 1) return std::numeric_limits<int64_t>::max();
    const uint32_t octave = kFirstOctave + (bucket - 1) / kPerOctave;
    return (int64_t{1} << octave) + (int64_t{(bucket - 1) % kPerOctave} + 1) * (int64_t{1} << (octave - 2));
  }

  // `times` of them, all so long. A negative duration counts as none.
  void Record(int64_t nanos, uint64_t times = 1) {
    counts_[BucketOf(nanos)] += times;
    sum_nanos_ += static_cast<uint64_t>(std::max<int64_t>(nanos, 0)) * times;
  }

  uint64_t count(uint32_t bucket) const { return counts_[bucket]; }
  uint64_t sum_nanos() const { return sum_nanos_; }
  uint64_t count() const {
    uint64_t sum = 0;
    for (const uint64_t count : counts_) sum += count;
    return sum;
  }

 private:
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t sum_nanos_ = 0;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_LATENCY_HISTOGRAM_H_
