#ifndef KVIST_STORAGE_SSD_CATALOG_STAMP_H_
#define KVIST_STORAGE_SSD_CATALOG_STAMP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/ssd/catalog_rows.h"

namespace kvist::ssd {

// A file beside the catalog that says which catalog belongs here, and how far it had come. A catalog that is whole can still be the
// wrong one: an older copy put back, or one of another store. It would be believed, and what was cleared since would be found again.
//
// It is replaced when a catalog is opened and when it is closed, not in between. So an older copy of the same run, put in after a
// crash, isn't known by it; that one is told by the segments: a header's epoch that has no row (catalog_check.h), and the records
// behind the last known one.

// Which files a closed catalog consists of: its list of them, in whole. A database finds damage in each of its files by itself, but
// takes a list that has lost its end for an older, shorter one.
struct CatalogFiles {
  uint64_t manifest;  // the list's number, as in its name
  uint64_t bytes;     // its length
  uint64_t checksum;  // XXH3-64 of it

  bool operator==(const CatalogFiles&) const = default;
};

struct CatalogStamp {
  uint64_t magic;
  uint32_t version;
  uint32_t clean;  // 1: written at a clean end; `commits` is exact then, else a lower bound
  StoreId store;
  uint64_t incarnation;
  uint64_t generation;
  uint64_t commits;
  CatalogFiles files;  // of a clean end; else zero
  uint64_t checksum;   // XXH3-64 of what is before
};
static_assert(sizeof(CatalogStamp) == 104 && std::is_trivially_copyable_v<CatalogStamp>);

inline constexpr uint64_t kStampMagic = 0x314d'4154'5354'564b;  // "KVTSTAM1"
inline constexpr uint32_t kStampVersion = 2;                    // 1 had no files

// What a catalog's own words and the stamp beside it say together.
struct CatalogAge {
  enum Kind {
    kClean,    // exactly what was there at the last clean end
    kUnclean,  // what was there at a crash, or an older copy of that run
    kWrong,    // not to be believed; `why`
  };
  Kind kind = kWrong;
  std::string why;
};
CatalogAge AgeOf(const MetaRow& meta, const std::optional<CatalogStamp>& stamp);

// Nothing when there is no such file, or what it holds is no stamp. Errors: the file can't be read.
absl::StatusOr<std::optional<CatalogStamp>> ReadStamp(const std::string& path);

// What to write of a catalog: at a clean end `files`, else nothing.
CatalogStamp StampOf(const MetaRow& meta, const std::optional<CatalogFiles>& files);

// Replaces the file: after a crash it is the old or the new one. Errors: of the file system.
absl::Status WriteStamp(const std::string& path, CatalogStamp stamp);
// There is none any more. Errors: of the file system.
absl::Status RemoveStamp(const std::string& path);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_CATALOG_STAMP_H_
