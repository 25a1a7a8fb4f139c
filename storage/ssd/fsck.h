#ifndef KVIST_STORAGE_SSD_FSCK_H_
#define KVIST_STORAGE_SSD_FSCK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/units.h"
#include "storage/ssd/catalog_check.h"
#include "storage/ssd/format.h"
#include "storage/ssd/verdict.h"

// A store that no daemon has open, read through: every record's header and payload, and every row of the catalog against them.
//
// A daemon needs none of this to be right: it checks what it reads, and starts over damage. fsck says beforehand what would be a miss,
// and with `repair` puts the catalog right: rows that lead to no good record go, or get those of another copy. What lies in segments
// that can't be read is left alone.
namespace kvist::ssd {

struct FsckProgress {
  uint64_t segments = 0;  // in all
  uint64_t segments_read = 0;
  Bytes bytes_read{};
};

struct FsckOptions {
  std::vector<std::string> directories;               // one a device, as the daemon has them: the first has the catalog
  bool repair = false;                                // else nothing is made or changed
  std::function<bool(const FsckProgress&)> progress;  // after each record; false: no more. May be empty
};

// A record whose payload isn't as it was written.
struct BadRecord {
  std::string file;
  Place place;
  Verdict verdict = Verdict::kGood;
  bool wanted = false;  // a row leads there; else it was cut off by a crash, or freed, and nobody will read it
};

struct FsckReport {
  static constexpr size_t kExamples = 20;

  Bytes segment_bytes{};
  uint64_t segments = 0;
  uint64_t segments_unused = 0;   // never used: they have no header
  uint64_t segments_damaged = 0;  // whose headers are both damaged: what lay there is lost
  uint64_t segments_fenced = 0;   // given up by the daemon after an error of the disk; not read
  uint64_t segments_missing =
      0;                 // that the catalog knows, in directories that have none: a disk that was replaced, or isn't mounted
  uint64_t records = 0;  // of all kinds, with a good header
  Bytes bytes_read{};
  uint64_t gaps = 0;           // places where a record was and its header isn't good, with others behind
  uint64_t unreadable = 0;     // places that the disk didn't give, and segments that couldn't be opened
  std::string why_unreadable;  // of the first
  uint64_t bad_records = 0;
  std::vector<BadRecord> examples;  // of the bad ones, at most kExamples, the wanted first

  bool unclean = false;          // the daemon was killed: what was being written may be torn, and is no fault
  bool rebuild_pending = false;  // the catalog isn't complete: the next start reads all headers
  std::string store_file;        // which directories' file "store" is lost or damaged; empty: none
  std::string catalog_trouble;   // why the catalog can't be used; empty: it can
  CatalogCheck catalog;          // counts are 0 when it can't
  uint64_t rows_skipped = 0;     // that say nothing that this kvist knows: a daemon leaves them out
  uint64_t clears_missing = 0;   // records of clears that the catalog knows nothing of: it is an older copy

  // What could be, is: the catalog leads to good records only, or was moved aside for the next start to rebuild.
  bool repaired = false;
  absl::Duration elapsed;

  // Nothing of what is wanted is missing: every row of a usable catalog leads to its records.
  bool sound() const;
};

// Reads all of the store; minutes for large ones, as fast as the disks are.
// Errors: FailedPrecondition  a kvistd uses it; or the directories are of different stores, or out of order; or a repair is asked for by
//           another user than the store's, whose files kvistd then couldn't read.
//         NotFound  there is no store.  Cancelled  `progress` said so.  Others of the file system. Nothing was
//           changed, unless the repair itself failed.
absl::StatusOr<FsckReport> Fsck(const FsckOptions& options);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_FSCK_H_
