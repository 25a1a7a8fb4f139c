#include "storage/ssd/segment_records.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/ssd/record.h"
#include "storage/ssd/segment_header.h"

namespace kvist::ssd {
namespace {

constexpr uint32_t kSearchUnits = 256;      // read at a time where a record is looked for
constexpr Bytes kPayloadBytesMax = MiB(2);  // of a space's description; a longer one is damaged

// So many units are there; fewer at the file's end, or -1 and errno.
int64_t ReadUnits(int fd, std::byte* to, uint64_t unit, uint64_t units) {
  uint64_t done = 0;
  const uint64_t size = units * kUnit.value;
  while (done < size) {
    const ssize_t n = ::pread(fd, to + done, size - done, static_cast<off_t>(unit * kUnit.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
  }
  return static_cast<int64_t>(done / kUnit.value);
}

// Where the file has been written next, at or behind `from`; `to` if nowhere before. Preallocated space that never was is a hole to file systems
// that can tell, and half of an open segment is that: a start needn't read it.
uint32_t NextWritten(int fd, uint32_t from, uint32_t to) {
  const off_t at = ::lseek(fd, static_cast<off_t>(uint64_t{from} * kUnit.value), SEEK_DATA);
  if (at < 0) return errno == ENXIO ? to : from;
  return static_cast<uint32_t>(std::clamp<uint64_t>(static_cast<uint64_t>(at) / kUnit.value, from, to));
}

}  // namespace

class SegmentRecords::Buffer {
 public:
  explicit Buffer(uint64_t units)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kUnit.value, units * kUnit.value)), &std::free) {
    KVIST_CHECK(bytes_ != nullptr);
  }
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
};

absl::StatusOr<std::unique_ptr<SegmentRecords>> SegmentRecords::Open(const std::vector<std::string>& directories,
                                                                     Bytes segment_bytes) {
  std::vector<SegmentFiles> files;
  for (const std::string& directory : directories) {
    KVIST_ASSIGN_OR_RETURN(SegmentFiles of, SegmentFiles::ToRead(directory, segment_bytes));
    files.push_back(std::move(of));
  }
  return std::unique_ptr<SegmentRecords>(new SegmentRecords(std::move(files)));
}

void SegmentRecords::Know(const SegmentHeader& header) {
  const MutexLock lock(&mutex_);
  uses_[header.segment] = header;
}

std::optional<SegmentHeader> SegmentRecords::HeaderOf(uint32_t segment) {
  const MutexLock lock(&mutex_);
  const auto it = uses_.find(segment);
  return it == uses_.end() ? std::nullopt : std::optional(it->second);
}

absl::Status SegmentRecords::Opens(uint32_t segment) {
  const SegmentFiles::File file = files_.at(DeviceOf(segment)).Open(segment);
  return file.fd >= 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("opening ", SegmentFileName(segment)), file.error);
}

bool SegmentRecords::Find(const SegmentToRead& segment, Use* use) {
  {
    const MutexLock lock(&mutex_);
    const auto it = uses_.find(segment.number);
    if (it == uses_.end() || it->second.epoch != segment.epoch || it->second.units != segment.units) return false;
    use->header = it->second;
  }
  if (DeviceOf(segment.number) >= files_.size()) return false;
  use->fd = files_[DeviceOf(segment.number)].Open(segment.number).fd;
  return use->fd >= 0;
}

RecordSource::Found SegmentRecords::ReadHeader(const SegmentToRead& segment, uint32_t unit, RecordHeader* header) {
  Use use{};
  if (!Find(segment, &use)) return Found::kUnreadable;
  const Buffer buffer(1);
  const int64_t units = ReadUnits(use.fd, buffer.data(), unit, 1);
  if (units < 0) return Found::kUnreadable;
  Sealer sealer;
  const bool good =
      units == 1 && CheckHeader(buffer.data(), use.header, {segment.number, unit}, &sealer, header) == Verdict::kGood;
  return good ? Found::kRecord : Found::kNone;
}

// Reads ahead while records are small: a MiB at once takes less than 32 reads of a unit each, on disks that were measured.
class SegmentRecords::Scanning final : public Headers {
 public:
  Scanning(SegmentRecords* records, const SegmentToRead& segment) : records_(*records), segment_(segment) {}

  Found At(uint32_t unit, RecordHeader* header) override {
    Use use{};
    if (!records_.Find(segment_, &use)) return Found::kUnreadable;
    if (unit < first_ || unit >= first_ + count_) {
      const bool ahead = last_ != 0 && unit - last_ <= kSmallUnits && unit >= one_by_one_until_;
      count_ = 0;
      int64_t units = ahead ? ReadUnits(use.fd, buffer_.data(), unit, std::min(kSearchUnits, segment_.units - unit)) : -1;
      if (ahead && units < 0) one_by_one_until_ = unit + kSearchUnits;
      if (units <= 0) units = ReadUnits(use.fd, buffer_.data(), unit, 1);  // one bad sector hides nothing but itself
      if (units < 0) return Found::kUnreadable;
      first_ = unit;
      count_ = static_cast<uint32_t>(units);
    }
    last_ = unit;
    if (count_ == 0) return Found::kNone;
    const std::byte* const at = buffer_.data() + uint64_t{unit - first_} * kUnit.value;
    const bool good = CheckHeader(at, use.header, {segment_.number, unit}, &sealer_, header) == Verdict::kGood;
    return good ? Found::kRecord : Found::kNone;
  }

 private:
  static constexpr uint32_t kSmallUnits = 8;

  SegmentRecords& records_;
  const SegmentToRead segment_;
  const Buffer buffer_{kSearchUnits};
  Sealer sealer_;
  uint32_t first_ = 0, count_ = 0;  // units in the buffer
  uint32_t last_ = 0;               // asked for
  uint32_t one_by_one_until_ = 0;   // the disk has refused some of these
};

std::unique_ptr<RecordSource::Headers> SegmentRecords::Scan(const SegmentToRead& segment) {
  return std::make_unique<Scanning>(this, segment);
}

uint32_t SegmentRecords::FindNext(const SegmentToRead& segment, uint32_t from, uint32_t to) {
  Use use{};
  if (!Find(segment, &use)) return to;
  const Buffer buffer(kSearchUnits);
  Sealer sealer;
  while ((from = NextWritten(use.fd, from, to)) < to) {
    // What can't be read in one piece is read unit by unit: one bad sector hides nothing but itself.
    uint32_t count = std::min(kSearchUnits, to - from);
    int64_t units = ReadUnits(use.fd, buffer.data(), from, count);
    if (units < 0) units = ReadUnits(use.fd, buffer.data(), from, count = 1);
    for (int64_t i = 0; i < units; ++i) {
      RecordHeader header;
      const Place place{segment.number, from + static_cast<uint32_t>(i)};
      if (CheckHeader(buffer.data() + static_cast<uint64_t>(i) * kUnit.value, use.header, place, &sealer, &header) ==
          Verdict::kGood)
        return place.unit;
    }
    from += count;
  }
  return to;
}

absl::StatusOr<Verdict> SegmentRecords::Check(const SegmentToRead& segment, const RecordHeader& header) {
  return ReadRecord(segment, header, [](const std::byte*) {});
}

absl::StatusOr<std::string> SegmentRecords::ReadPayload(const SegmentToRead& segment, const RecordHeader& header) {
  if (header.payload_bytes > kPayloadBytesMax.value) return absl::DataLossError("a longer payload than there can be");
  std::string payload;
  KVIST_ASSIGN_OR_RETURN(const Verdict verdict, ReadRecord(segment, header, [&](const std::byte* bytes) {
                           payload.assign(reinterpret_cast<const char*>(bytes), header.payload_bytes);
                         }));
  if (verdict != Verdict::kGood) return absl::DataLossError("the record isn't what was written");
  return payload;
}

absl::StatusOr<Verdict> SegmentRecords::ReadRecord(const SegmentToRead& segment, const RecordHeader& header,
                                                   absl::FunctionRef<void(const std::byte*)> when_good) {
  Use use{};
  if (!Find(segment, &use)) return absl::UnavailableError("the segment's file can't be opened");
  const uint32_t units = UnitsFor({header.payload_bytes});
  const Buffer buffer(units);
  const int64_t read = ReadUnits(use.fd, buffer.data(), header.unit, units);
  if (read < 0) return ErrnoStatus("reading a record", errno);
  if (read != units) return Verdict::kTorn;
  Sealer sealer;
  RecordHeader found;
  Verdict verdict = CheckHeader(buffer.data(), use.header, {segment.number, header.unit}, &sealer, &found);
  if (verdict == Verdict::kGood) {
    verdict = found.payload_bytes == header.payload_bytes ? CheckPayload(buffer.data(), found) : Verdict::kOther;
  }
  if (verdict == Verdict::kGood) when_good(buffer.data() + kHeaderBytes.value);
  return verdict;
}

}  // namespace kvist::ssd
