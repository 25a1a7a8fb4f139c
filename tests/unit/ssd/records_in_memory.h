#ifndef KVIST_TESTS_UNIT_SSD_RECORDS_IN_MEMORY_H_
#define KVIST_TESTS_UNIT_SSD_RECORDS_IN_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/ssd/record_source.h"

namespace kvist::ssd::test {

// Segments that exist as headers only. What is damaged is there for nobody.
// Threads: one changes it; any read it while nobody does.
class RecordsInMemory : public RecordSource {
 public:
  using Place2 = std::pair<uint32_t, uint32_t>;  // segment, unit

  std::map<uint32_t, SegmentToRead> segments;
  std::map<Place2, RecordHeader> records;
  std::map<Place2, std::string> payloads;
  std::set<Place2> damaged, unreadable;
  std::atomic<uint64_t> reads{0}, searches{0};

  std::vector<SegmentToRead> All() const {
    std::vector<SegmentToRead> all;
    for (const auto& [number, segment] : segments) all.push_back(segment);
    return all;
  }
  // A use of the segment begins: what it held is gone.
  void Open(uint32_t number, uint64_t epoch, uint32_t units) {
    const auto gone = [number](const auto& entry) { return entry.first.first == number; };
    std::erase_if(records, gone);
    std::erase_if(payloads, gone);
    std::erase_if(damaged, [number](const Place2& place) { return place.first == number; });
    segments[number] = {number, epoch, units};
  }
  void Put(RecordHeader header) {
    header.magic = kRecordMagic;
    header.epoch = segments[header.segment].epoch;
    records[{header.segment, header.unit}] = header;
  }

  Found ReadHeader(const SegmentToRead& segment, uint32_t unit, RecordHeader* header) override {
    ++reads;
    const Place2 place{segment.number, unit};
    if (unreadable.count(place) != 0) return Found::kUnreadable;
    const auto it = records.find(place);
    if (it == records.end() || damaged.count(place) != 0 || it->second.epoch != segment.epoch) return Found::kNone;
    *header = it->second;
    return Found::kRecord;
  }
  uint32_t FindNext(const SegmentToRead& segment, uint32_t from, uint32_t to) override {
    ++searches;
    for (auto it = records.lower_bound({segment.number, from});
         it != records.end() && it->first < Place2{segment.number, to}; ++it) {
      if (damaged.count(it->first) == 0 && unreadable.count(it->first) == 0) return it->first.second;
    }
    return to;
  }
  absl::StatusOr<std::string> ReadPayload(const SegmentToRead& segment, const RecordHeader& header) override {
    const auto it = payloads.find({segment.number, header.unit});
    if (it == payloads.end()) return absl::DataLossError("no payload");
    return it->second;
  }
};

}  // namespace kvist::ssd::test

#endif  // KVIST_TESTS_UNIT_SSD_RECORDS_IN_MEMORY_H_
