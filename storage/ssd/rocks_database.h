#ifndef KVIST_STORAGE_SSD_ROCKS_DATABASE_H_
#define KVIST_STORAGE_SSD_ROCKS_DATABASE_H_

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/units.h"
#include "storage/ssd/catalog.h"
#include "storage/ssd/catalog_rows.h"
#include "storage/ssd/catalog_stamp.h"
#include "storage/ssd/rocks_catalog.h"

// A catalog's database: how it is opened, whether it is to be believed, and its rows. Only rocks_*.cc include this: nobody else knows
// RocksDB. Its errors become statuses here: DataLoss for damage, ResourceExhausted for a full disk, Unavailable for the rest.
namespace kvist::ssd {

inline rocksdb::Slice SliceOf(std::string_view text) { return {text.data(), text.size()}; }
absl::Status FromRocks(const char* what, const rocksdb::Status& status);

// `write_buffer`: a memtable, of which there are two.
rocksdb::Options DatabaseOptions(Bytes write_buffer);
absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const std::string& path, const rocksdb::Options& options);
// For its rows alone: changes and makes no file.
absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabaseToRead(const std::string& path);

// Whether this process may use the files there and no other does; what isn't so is no damage.
absl::Status DatabaseUsable(const std::string& path);
// Whether the files are those that the stamp of a clean end names. Errors: DataLoss.
absl::Status FilesAreThose(const std::string& path, const std::optional<CatalogStamp>& stamp);
// Whether a catalog that says this of itself is the one that belongs here: kClean or kUnclean. Errors: DataLoss.
absl::StatusOr<OpenReport::Kind> KindOfCatalog(const MetaRow& meta, const std::optional<CatalogStamp>& stamp,
                                               const std::optional<StoreId>& store);

absl::StatusOr<MetaRow> ReadMeta(rocksdb::DB* db);
// All other rows, to `sink`. `cancelled` is asked between batches. `snapshot`: null: as it is now.
LoadReport LoadRows(rocksdb::DB* db, const rocksdb::Snapshot* snapshot, RowSink* sink, absl::FunctionRef<bool()> cancelled);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_ROCKS_DATABASE_H_
