#ifndef KVIST_TESTS_UNIT_SSD_CATALOG_HISTORY_H_
#define KVIST_TESTS_UNIT_SSD_CATALOG_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd::test {

// All rows but meta, by their keys: what a catalog is to its users.
using Rows = std::map<std::string, std::string>;

void Apply(const CatalogBatch& batch, Rows* rows);

// The i-th batch of a history: a function of these two alone. Of few names, so that rows are replaced and erased; kinds of all sorts.
// Each batch also puts the pin "progress", which says i.
CatalogBatch BatchOf(uint64_t seed, uint64_t i);
// What is there after the first `batches` of them.
Rows RowsAfter(uint64_t seed, uint64_t batches);
// How many batches of a history these rows are, by their pin; 0 when they have none.
uint64_t ProgressOf(const Rows& rows);

// Loads into rows and checks the order in which they come.
class Collector : public RowSink {
 public:
  bool Take(RowBatch batch) override;
  void Loaded(const LoadReport& report) override;
  // Waits for the end, bounded.
  const LoadReport& Wait();

  Rows rows;
  bool in_order = true;
  size_t largest = 0;  // batch
  std::optional<ChunkId> last_chunk;

 private:
  int phase_ = 0;
  LoadReport report_;
  absl::Notification ended_;
};

// Commits and waits, bounded.
absl::Status CommitNow(Catalog* catalog, CatalogBatch batch);
absl::Status StartOverNow(Catalog* catalog);
// All rows of it, or why not.
struct Loaded {
  LoadReport report;
  Rows rows;
};
Loaded LoadNow(Catalog* catalog);

}  // namespace kvist::ssd::test

#endif  // KVIST_TESTS_UNIT_SSD_CATALOG_HISTORY_H_
