#ifndef KVIST_STORAGE_SSD_RECORD_SOURCE_H_
#define KVIST_STORAGE_SSD_RECORD_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/ssd/format.h"

namespace kvist::ssd {

// A segment whose header was found good: this use of it is to be read.
struct SegmentToRead {
  uint32_t number = 0;
  uint64_t epoch = 0;
  uint32_t units = 0;  // of the file, both headers included
};

inline SegmentToRead ToRead(const SegmentHeader& header) {
  return {header.segment, header.epoch, static_cast<uint32_t>(header.units)};
}

// Where a rebuild has records from. The implementation reads devices and checks what it read; a test has them in memory.
// Threads: any, several at a time. Calls wait for the disk.
class RecordSource {
 public:
  enum class Found {
    kRecord,      // a header with a right seal, of this segment's use and of this place
    kNone,        // anything else: nothing, damaged, of another time or place
    kUnreadable,  // the disk fails there
  };
  virtual ~RecordSource() = default;

  // What lies at that unit. Reads one unit.
  virtual Found ReadHeader(const SegmentToRead& segment, uint32_t unit, RecordHeader* header) = 0;

  // The headers of a segment, from its start to its end; where records are small whoever can reads many with one call. Lives as
  // long as its source at most. Threads: one.
  class Headers {
   public:
    virtual ~Headers() = default;
    // As ReadHeader; units rise from call to call.
    virtual Found At(uint32_t unit, RecordHeader* header) = 0;
  };
  virtual std::unique_ptr<Headers> Scan(const SegmentToRead& segment);

  // The first unit in [from, to) at which a record lies; `to` when there is none. For what lies behind a damaged header, and for the
  // unwritten end of a segment; whoever can reads large pieces, or knows what was never written.
  virtual uint32_t FindNext(const SegmentToRead& segment, uint32_t from, uint32_t to) {
    RecordHeader header;
    while (from < to && ReadHeader(segment, from, &header) != Found::kRecord) ++from;
    return from;
  }

  // The payload of a kSpace record, checked. Errors: DataLoss  it isn't what was written.  Unavailable  the disk fails.
  virtual absl::StatusOr<std::string> ReadPayload(const SegmentToRead& segment, const RecordHeader& header) = 0;
};

inline std::unique_ptr<RecordSource::Headers> RecordSource::Scan(const SegmentToRead& segment) {
  class OneByOne final : public Headers {
   public:
    OneByOne(RecordSource* source, const SegmentToRead& segment) : source_(*source), segment_(segment) {}
    Found At(uint32_t unit, RecordHeader* header) override { return source_.ReadHeader(segment_, unit, header); }

   private:
    RecordSource& source_;
    const SegmentToRead segment_;
  };
  return std::make_unique<OneByOne>(this, segment);
}

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_RECORD_SOURCE_H_
