#ifndef KVIST_STORAGE_SSD_SEGMENT_RECORDS_H_
#define KVIST_STORAGE_SSD_SEGMENT_RECORDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/ssd/record_source.h"
#include "storage/ssd/segment_files.h"
#include "storage/ssd/verdict.h"

namespace kvist::ssd {

// The records of a store's segment files, each checked by the secret of the use that it claims to be of: for rebuilds, and for whoever
// wants to know what a segment holds. Reads beside the devices, with calls that wait, by direct I/O where that is to be had.
//
// Threads: any.
class SegmentRecords final : public RecordSource {
 public:
  // `directories`: [device]. Errors: those of opening them.
  static absl::StatusOr<std::unique_ptr<SegmentRecords>> Open(const std::vector<std::string>& directories,
                                                              Bytes segment_bytes);

  // Whether the segment's file can be opened. Errors: why not.
  absl::Status Opens(uint32_t segment);
  // The segment's use, from now on; said before anything of it is written.
  void Know(const SegmentHeader& header) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<SegmentHeader> HeaderOf(uint32_t segment) ABSL_LOCKS_EXCLUDED(mutex_);

  Found ReadHeader(const SegmentToRead& segment, uint32_t unit, RecordHeader* header) override;
  std::unique_ptr<Headers> Scan(const SegmentToRead& segment) override;
  uint32_t FindNext(const SegmentToRead& segment, uint32_t from, uint32_t to) override;
  // Whether all of the record is as it was written. `header` was read from its place by ReadHeader. Reads the record, whole.
  // Errors: Unavailable  the disk fails.
  absl::StatusOr<Verdict> Check(const SegmentToRead& segment, const RecordHeader& header);
  absl::StatusOr<std::string> ReadPayload(const SegmentToRead& segment, const RecordHeader& header) override;

 private:
  class Buffer;
  class Scanning;
  struct Use {
    SegmentHeader header;
    int fd;
  };
  explicit SegmentRecords(std::vector<SegmentFiles> files) : files_(std::move(files)) {}
  // Of that epoch, with its file; false when there is none.
  bool Find(const SegmentToRead& segment, Use* use) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<Verdict> ReadRecord(const SegmentToRead& segment, const RecordHeader& header,
                                     absl::FunctionRef<void(const std::byte* payload)> when_good);

  std::vector<SegmentFiles> files_;  // [device]
  Mutex mutex_;
  absl::flat_hash_map<uint32_t, SegmentHeader> uses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEGMENT_RECORDS_H_
