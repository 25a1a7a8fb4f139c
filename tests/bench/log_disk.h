#ifndef KVIST_TESTS_BENCH_LOG_DISK_H_
#define KVIST_TESTS_BENCH_LOG_DISK_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "storage/base/check.h"
#include "storage/base/ids.h"

namespace kvist::bench {

// A disk without bytes: blocks are appended to segments, and the segment with the fewest that are still wanted, of those the oldest, is
// wanted back when few are free. As storage/ssd does it.
class LogDisk {
 public:
  struct Record {
    ChunkKey key;
    DiskPlace place;
  };
  static constexpr uint64_t kSegments = 64;

  explicit LogDisk(uint64_t capacity)
      : capacity_(capacity),
        per_segment_(std::max<uint64_t>(capacity / kSegments, 1)),
        segments_(capacity > 0 ? kSegments : 0) {
    for (uint32_t i = 0; i < segments_.size(); ++i) free_.push_back(i);
  }

  uint64_t capacity() const { return capacity_; }
  uint64_t written() const { return written_; }
  bool crowded() const { return capacity_ > 0 && free_.size() < kSegments / 16; }

  // Nothing when there is no room.
  std::optional<DiskPlace> Append(const ChunkKey& key) {
    if (open_ == kNone || segments_[open_].records.size() == per_segment_) {
      if (free_.empty()) return std::nullopt;
      open_ = free_.back();
      free_.pop_back();
      segments_[open_] = {.age = ++ages_};
    }
    Segment& segment = segments_[open_];
    const DiskPlace place{open_ + 1, static_cast<uint32_t>(segment.records.size()) + 1};
    segment.records.push_back({key, place});
    segment.wanted.push_back(true);
    ++segment.live;
    ++written_;
    return place;
  }

  void Free(DiskPlace place) {
    Segment& segment = segments_[place.segment - 1];
    KVIST_CHECK(segment.wanted.at(place.unit - 1));
    segment.wanted[place.unit - 1] = false;
    if (--segment.live == 0 && place.segment - 1 != open_) free_.push_back(place.segment - 1);
  }

  // What is still wanted of the segment whose turn it is.
  std::vector<Record> Wanted(size_t most) const {
    const Segment* next = nullptr;
    for (const Segment& segment : segments_) {
      if (segment.live == 0 || segment.records.size() < per_segment_ || &segment == &segments_[open_]) continue;
      if (next == nullptr || std::pair(segment.live, segment.age) < std::pair(next->live, next->age)) next = &segment;
    }
    std::vector<Record> records;
    for (size_t i = 0; next != nullptr && i < next->records.size() && records.size() < most; ++i) {
      if (next->wanted[i]) records.push_back(next->records[i]);
    }
    return records;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Segment {
    uint64_t age = 0;
    uint64_t live = 0;
    std::vector<Record> records = {};
    std::vector<bool> wanted = {};  // [record]
  };
  const uint64_t capacity_;
  const uint64_t per_segment_;
  std::vector<Segment> segments_;
  std::vector<uint32_t> free_;
  uint32_t open_ = kNone;
  uint64_t ages_ = 0;
  uint64_t written_ = 0;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_LOG_DISK_H_
