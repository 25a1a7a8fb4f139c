#ifndef KVIST_STORAGE_SSD_ROCKS_CATALOG_H_
#define KVIST_STORAGE_SSD_ROCKS_CATALOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd {

struct RocksCatalogOptions {
  // Of the store; the catalog is what is called catalog* in it. Its file system's errors are the catalog's
  std::string folder;
  std::optional<StoreId> store;  // whose it must be, as the segments say; none: whoever's is there, or a new one's

  // Commits that may wait. Larger: bursts are taken without ResourceExhausted, and more memory is held.
  uint32_t waiting_batches_max = 1024;
  Bytes waiting_bytes_max = MiB(16);
  // What is written together at most. Larger: fewer flushes while much waits, and the first of a group waits longer.
  Bytes group_bytes_max = MiB(1);
  // A memtable, of which there are two. Larger: fewer, larger files and a longer start after a crash.
  Bytes write_buffer = MiB(16);
  // What was moved aside and is kept for whoever wants to know why. Larger: more disk.
  uint32_t quarantines_max = 2;

  // Tests only: called before each step that a crash can separate from the next, by its name, on the thread that takes it.
  std::function<void(std::string_view step)> before_step;

  absl::Status Validate() const;  // names the field
};

// The catalog in a RocksDB of its own, "<folder>/catalog": one thread commits, one loads. Beside it lie "catalog.stamp"
// (catalog_stamp.h), "catalog.lock" (one process at a time) and "catalog.quarantine-<n>".
class RocksCatalog : public Catalog {
 public:
  // Damage, loss, another format or an older copy is no error: what is there is moved aside and the report says so.
  // Errors: FailedPrecondition  another process uses this store, or opens the database with a tool of RocksDB's.
  //         ResourceExhausted  no space; Unavailable, PermissionDenied, ..  the folder can't be used: then an empty catalog couldn't be, either.
  static absl::StatusOr<std::unique_ptr<RocksCatalog>> Open(RocksCatalogOptions options);
  ~RocksCatalog() override;

  const OpenReport& report() const override;
  CatalogStats stats() const override;
  absl::Status Commit(CatalogBatch batch, Done done) override;
  absl::Status Load(RowSink* sink) override;
  void EndUnclean() override;
  void StartOver(std::string why, Done done) override;

 private:
  class State;
  explicit RocksCatalog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A catalog that no process has open, as it lies there.
struct CatalogAtRest {
  OpenReport::Kind kind = OpenReport::kNew;  // kSetAside: the next start would do that, for `trouble`
  std::string trouble;                       // why it can't be used
  bool rebuild_pending = true;
  uint64_t generation = 0;  // of its last open
  RowBatch rows;            // all of them; none when it can't be used
  uint64_t skipped = 0;     // rows that don't parse
};

// Keeps others from opening it until the descriptor is closed; none where no process ever had it open.
// Errors: FailedPrecondition  a process uses this store.
absl::StatusOr<UniqueFd> LockCatalog(const std::string& folder);
// Reads it, under that lock; makes and changes nothing.
// Errors: of the file system.
absl::StatusOr<CatalogAtRest> ReadCatalog(const std::string& folder, const StoreId& store);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_ROCKS_CATALOG_H_
