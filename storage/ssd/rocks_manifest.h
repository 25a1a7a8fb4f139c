#ifndef KVIST_STORAGE_SSD_ROCKS_MANIFEST_H_
#define KVIST_STORAGE_SSD_ROCKS_MANIFEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/ssd/catalog_stamp.h"

namespace kvist::ssd {

// What a database's file CURRENT names: its list of files, MANIFEST-<number>, as that lies there now. RocksDB takes a list whose last
// records are missing for one that ended there, and then tables are missing, too; so whoever has closed a database writes this down.
//
// Errors: DataLoss  CURRENT or what it names isn't there, or can't be read.
absl::StatusOr<CatalogFiles> ReadManifest(const std::string& folder);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_ROCKS_MANIFEST_H_
