#include "storage/ssd/fsck.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/collected_rows.h"
#include "storage/ssd/rebuilt_rows.h"
#include "storage/ssd/rocks_catalog.h"
#include "storage/ssd/segment_header.h"
#include "storage/ssd/segment_records.h"
#include "storage/ssd/segment_scan.h"
#include "storage/ssd/store_directory.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

// A file that another user makes there is one that kvistd can't read.
absl::Status MayRepair(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    struct stat of {};
    if (::stat(directory.c_str(), &of) != 0) return ErrnoStatus(absl::StrCat("looking at ", directory), errno);
    if (of.st_uid == ::geteuid()) continue;
    return absl::FailedPreconditionError(absl::StrCat(directory, " is user ", of.st_uid,
                                                      "'s: repair it as that user, with sudo -u '#", of.st_uid,
                                                      "' kvistctl fsck --repair"));
  }
  return absl::OkStatus();
}

absl::Status Done(Catalog* catalog, std::optional<std::string> start_over, CatalogBatch batch = {}) {
  absl::Notification done;
  absl::Status result;
  const auto end = [&](const absl::Status& status) {
    result = status;
    done.Notify();
  };
  if (start_over) {
    catalog->StartOver(*std::move(start_over), end);
  } else {
    KVIST_RETURN_IF_ERROR(catalog->Commit(std::move(batch), end));
  }
  done.WaitForNotification();
  return result;
}

class Checking {
 public:
  explicit Checking(const FsckOptions& options) : options_(options) {}

  absl::StatusOr<FsckReport> Run() {
    const absl::Time began = MonotonicNow();
    if (options_.directories.empty() || options_.directories.size() > kDevicesMax)
      return absl::InvalidArgumentError(absl::StrCat("a store has 1 to ", kDevicesMax, " directories"));
    if (options_.repair) KVIST_RETURN_IF_ERROR(MayRepair(options_.directories));
    KVIST_ASSIGN_OR_RETURN(lock_, LockCatalog(options_.directories[0]));
    KVIST_RETURN_IF_ERROR(ReadDirectories());
    KVIST_RETURN_IF_ERROR(ReadRows());
    KVIST_RETURN_IF_ERROR(ReadRecords());
    Judge();
    if (options_.repair) KVIST_RETURN_IF_ERROR(Repair());
    report_.elapsed = MonotonicNow() - began;
    return std::move(report_);
  }

 private:
  absl::Status ReadDirectories();
  absl::Status ReadRows();
  absl::Status ReadRecords();
  absl::Status ReadSegment(const SegmentHeader& header);
  void CannotRead(const absl::Status& why) {
    if (report_.unreadable++ == 0) report_.why_unreadable = std::string(why.message());
  }
  void Judge();
  absl::Status Repair();
  uint32_t NumberOf(const SpaceDigest& digest);
  std::string FileOf(Place place) const {
    return absl::StrCat(options_.directories[DeviceOf(place.segment)], "/", SegmentFileName(place.segment));
  }

  const FsckOptions& options_;
  FsckReport report_;
  StoreId store_;
  std::vector<SegmentHeader> found_;
  UniqueFd lock_;                      // so that no daemon comes meanwhile
  std::vector<uint32_t> lost_stores_;  // directories whose file "store" is lost
  std::set<uint32_t> empty_;           // directories without segments
  RowBatch rows_;                      // the catalog's
  bool usable_ = false;                // it is
  uint64_t generation_ = 0;            // of its last open
  std::map<SpaceDigest, uint32_t> numbers_;
  uint32_t next_number_ = 0;
  FsckProgress progress_;
  absl::flat_hash_set<uint32_t> read_;  // segments, all of them, or given up by the daemon
  RebuiltRows rebuilt_;
  GoodRecords good_;
  std::vector<BadRecord> bad_;
};

absl::Status Checking::ReadDirectories() {
  KVIST_ASSIGN_OR_RETURN(report_.segment_bytes, SegmentBytesIn(options_.directories));
  std::optional<StoreId> join;
  for (uint32_t device = 0; device < options_.directories.size(); ++device) {
    const std::string& path = options_.directories[device];
    KVIST_ASSIGN_OR_RETURN(const StoreDirectory directory,
                           ReadStoreDirectory(path, report_.segment_bytes / kUnit, device, join));
    const bool made = directory.origin == StoreDirectory::Origin::kMade;
    if (made && device == 0) return absl::NotFoundError(absl::StrCat(path, " holds no store"));
    if (directory.segments.empty()) empty_.insert(device);
    if (made || directory.origin == StoreDirectory::Origin::kRecovered) {
      absl::StrAppend(&report_.store_file, report_.store_file.empty() ? "" : ", ", path);
      lost_stores_.push_back(device);
    }
    join = store_ = directory.store;
    report_.segments += directory.segments.size();
    for (const StoreDirectory::Found& segment : directory.segments) {
      if (segment.unreadable != 0) {
        CannotRead(ErrnoStatus(absl::StrCat("reading the headers of ", FileOf({segment.segment, 0})), segment.unreadable));
      } else if (segment.verdict == Verdict::kGood) {
        found_.push_back(segment.header);
      } else {
        ++(segment.verdict == Verdict::kBlank ? report_.segments_unused : report_.segments_damaged);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Checking::ReadRows() {
  KVIST_ASSIGN_OR_RETURN(CatalogAtRest found, ReadCatalog(options_.directories[0], store_));
  report_.catalog_trouble = found.trouble;
  report_.unclean = found.kind == OpenReport::kUnclean;
  report_.rebuild_pending = found.rebuild_pending;
  report_.rows_skipped = found.skipped;
  rows_ = std::move(found.rows);
  generation_ = found.generation;
  usable_ = report_.catalog_trouble.empty() && !report_.rebuild_pending;
  if (usable_) {
    std::vector<SegmentToRead> segments;
    for (const SegmentHeader& header : found_) segments.push_back(ToRead(header));
    report_.catalog_trouble = WhyTooOld(rows_.segments, segments).value_or("");
    usable_ = report_.catalog_trouble.empty();
  }
  if (!usable_) rows_ = {};
  for (const SpaceRow& row : rows_.spaces) {
    numbers_[row.digest] = row.number;
    rebuilt_.Number(row.digest, row.number);
    next_number_ = std::max(next_number_, row.number + 1);
  }
  return absl::OkStatus();
}

uint32_t Checking::NumberOf(const SpaceDigest& digest) {
  const auto [it, fresh] = numbers_.emplace(digest, next_number_);
  if (fresh) {
    ++next_number_;
    rebuilt_.Number(digest, it->second);
  }
  return it->second;
}

absl::Status Checking::ReadRecords() {
  std::map<uint32_t, SegmentRow> rows;
  for (const SegmentRow& row : rows_.segments) {
    rows[row.number] = row;
    if (row.state == SegmentState::kFree || !empty_.contains(DeviceOf(row.number))) continue;
    report_.segments_missing += row.state == SegmentState::kFull ? 1 : 0;  // an open one may have been refused its file
    read_.insert(row.number);
  }
  std::erase_if(found_, [&](const SegmentHeader& header) {
    const auto row = rows.find(header.segment);
    const bool fenced = row != rows.end() && row->second.epoch == header.epoch && row->second.state == SegmentState::kFenced;
    report_.segments_fenced += fenced ? 1 : 0;
    if (fenced) read_.insert(header.segment);  // a daemon doesn't, either
    return fenced;
  });
  progress_.segments = found_.size();
  for (const SegmentHeader& header : found_) KVIST_RETURN_IF_ERROR(ReadSegment(header));
  return absl::OkStatus();
}

absl::Status Checking::ReadSegment(const SegmentHeader& header) {
  // One at a time: a store may have more files than a process may have open.
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<SegmentRecords> records,
                         SegmentRecords::Open(options_.directories, report_.segment_bytes));
  const SegmentToRead segment = ToRead(header);
  const uint64_t unreadable = report_.unreadable;
  records->Know(header);
  bool more = true;
  if (const absl::Status opens = records->Opens(header.segment); !opens.ok()) {
    CannotRead(opens);
  } else {
    const SegmentScanned scanned = ScanSegment(
        records.get(), segment, 1,
        [&](const RecordHeader& record) {
          const absl::StatusOr<Verdict> verdict = records->Check(segment, record);
          progress_.bytes_read += kUnit * UnitsFor({record.payload_bytes});
          if (options_.progress) more = options_.progress(progress_);
          if (!verdict.ok()) return CannotRead(verdict.status());
          if (*verdict != Verdict::kGood) return bad_.push_back({"", {record.segment, record.unit}, *verdict, false});
          rebuilt_.Add(record);
          if (record.kind == RecordKind::kShard) good_.Add(record, NumberOf(record.space));
        },
        [&] { return more; });
    if (!scanned.whole) return absl::CancelledError("it was ended early");
    report_.records += scanned.records;
    report_.gaps += scanned.gaps;
    if (scanned.unreadable > 0) {
      CannotRead(absl::UnavailableError(absl::StrCat("reading headers in ", FileOf({header.segment, 0}))));
    }
  }
  if (report_.unreadable == unreadable) read_.insert(header.segment);
  ++progress_.segments_read;
  return absl::OkStatus();
}

void Checking::Judge() {
  rebuilt_.Finish();
  report_.bytes_read = progress_.bytes_read;
  report_.bad_records = bad_.size();
  std::map<SpaceDigest, uint64_t> cleared;
  for (const ClearRow& row : rows_.clears) cleared[row.space] = row.sequence;
  for (const ClearRow& row : rebuilt_.clears()) {
    uint64_t& in_force = cleared[row.space];
    if (usable_ && row.sequence > in_force) ++report_.clears_missing;
    in_force = std::max(in_force, row.sequence);
  }
  if (usable_) {
    std::map<uint32_t, uint64_t> below;  // by the space's number
    const uint64_t all = cleared[SpaceDigest{}];
    for (const SpaceRow& row : rows_.spaces) below[row.number] = std::max(all, cleared[row.digest]);
    std::erase_if(rows_.chunks, [&](const ChunkRow& row) { return row.sequence < below[row.id.space]; });
    std::vector<ChunkRow> made;
    for (std::vector<ChunkRow> next = rebuilt_.NextChunks(4096); !next.empty(); next = rebuilt_.NextChunks(4096))
      made.insert(made.end(), next.begin(), next.end());
    std::erase_if(made, [&](const ChunkRow& row) { return row.sequence < below[row.id.space]; });
    report_.catalog = HoldAgainst(rows_.chunks, made, good_, [this](uint32_t segment) { return read_.contains(segment); });
  }
  absl::flat_hash_set<uint64_t> wanted;
  for (const ChunkRow& row : rows_.chunks) {
    for (const Place place : row.places) wanted.insert(uint64_t{place.segment} << 32 | place.unit);
  }
  for (BadRecord& bad : bad_) bad.wanted = wanted.contains(uint64_t{bad.place.segment} << 32 | bad.place.unit);
  std::stable_partition(bad_.begin(), bad_.end(), [](const BadRecord& bad) { return bad.wanted; });
  bad_.resize(std::min(bad_.size(), FsckReport::kExamples));
  for (BadRecord& bad : bad_) bad.file = FileOf(bad.place);
  report_.examples = std::move(bad_);
}

absl::Status Checking::Repair() {
  CatalogBatch batch;
  for (const ClearRow& row : rebuilt_.clears()) {
    const auto known = std::find_if(rows_.clears.begin(), rows_.clears.end(),
                                    [&](const ClearRow& clear) { return clear.space == row.space; });
    if (usable_ && (known == rows_.clears.end() || known->sequence < row.sequence)) batch.Put(row);
  }
  for (SegmentRow row : rows_.segments) {
    if (row.state == SegmentState::kFree || !empty_.contains(DeviceOf(row.number))) continue;
    row.state = SegmentState::kFree;
    batch.Put(row);
  }
  batch.Append(report_.catalog.repair);
  for (const uint32_t device : lost_stores_) {
    KVIST_RETURN_IF_ERROR(
        OpenStoreDirectory(options_.directories[device], report_.segment_bytes / kUnit, device, store_).status());
  }
  if (batch.changes() == 0 && (usable_ || report_.catalog_trouble.empty())) {
    report_.repaired = true;
    return absl::OkStatus();
  }

  RocksCatalogOptions options;
  options.folder = options_.directories[0];
  options.store = store_;
  lock_ = UniqueFd();  // it takes its own
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<RocksCatalog> catalog, RocksCatalog::Open(std::move(options)));
  const OpenReport& opened = catalog->report();
  if (usable_) {
    if (opened.kind == OpenReport::kSetAside || opened.generation != generation_ + 1)
      return absl::FailedPreconditionError("a kvistd had it open since it was read: try again");
    if (opened.kind == OpenReport::kUnclean)
      catalog->EndUnclean();  // the next start still looks for records whose rows are lost
    KVIST_RETURN_IF_ERROR(Done(catalog.get(), std::nullopt, std::move(batch)));
  } else if (!opened.rebuild_pending) {
    // As the next start would do itself; it rebuilds it from the headers.
    KVIST_RETURN_IF_ERROR(Done(catalog.get(), report_.catalog_trouble));
  }
  report_.rebuild_pending = !usable_;
  report_.repaired = true;
  return absl::OkStatus();
}

}  // namespace

bool FsckReport::sound() const {
  return catalog_trouble.empty() && store_file.empty() && catalog.sound() && clears_missing == 0 && segments_missing == 0;
}

absl::StatusOr<FsckReport> Fsck(const FsckOptions& options) { return Checking(options).Run(); }

}  // namespace kvist::ssd
