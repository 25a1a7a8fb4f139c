#ifndef KVIST_STORAGE_SSD_STORE_DIRECTORY_H_
#define KVIST_STORAGE_SSD_STORE_DIRECTORY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/ssd/format.h"
#include "storage/ssd/verdict.h"

namespace kvist::ssd {

// What is in a directory of a store. No lock: a daemon has the state directory's, fsck the catalog's.
struct StoreDirectory {
  // A segment's file. kGood: `header` is of its last use, or, when it is unreadable, of one before, perhaps. Else nothing in it can be read,
  // and unless it is unreadable it is as good as free.
  struct Found {
    uint32_t segment = 0;
    Verdict verdict = Verdict::kGood;
    SegmentHeader header{};
    int unreadable = 0;  // the errno by which the disk refused one of its headers
  };
  enum class Origin : uint8_t {
    kFound,
    kMade,       // there was no store here
    kRecovered,  // the file "store" was lost or damaged: the segments say which store this is
  };
  StoreId store;
  uint32_t device = 0;
  Origin origin = Origin::kFound;
  std::vector<Found> segments;  // ascending
};

// How large the segments of the store in these directories are, as the one says that was used last.
// A directory that isn't there has none. Errors: NotFound  no segment was ever used there; those of listing a directory.
absl::StatusOr<Bytes> SegmentBytesIn(const std::vector<std::string>& directories);

// What `path` holds; changes nothing. kMade: it holds no store; kRecovered: the file "store" is to be written again.
// Errors: as OpenStoreDirectory's; NotFound  there is no such directory.
absl::StatusOr<StoreDirectory> ReadStoreDirectory(const std::string& path, uint64_t segment_units, uint32_t device,
                                                  const std::optional<StoreId>& join = std::nullopt);

// Opens `path`, which is made (0700) when it isn't there, and its file "store"; then reads the headers of all segments, two units each.
// `join`: the store of the other directories; a directory without a store joins it as `device`. None: it becomes a store of its own.
// A damaged file "store" is replaced: a store never fails to open for what lies in it.
// Errors: those of the file system; FailedPrecondition  the directory is of another store or device than `join` and `device` say, or a
//   later version of kvist has made it (its file is left alone).
absl::StatusOr<StoreDirectory> OpenStoreDirectory(const std::string& path, uint64_t segment_units, uint32_t device,
                                                  const std::optional<StoreId>& join = std::nullopt);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STORE_DIRECTORY_H_
