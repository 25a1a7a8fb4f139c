#ifndef KVIST_STORAGE_SSD_COLLECTED_ROWS_H_
#define KVIST_STORAGE_SSD_COLLECTED_ROWS_H_

#include <utility>

#include "absl/synchronization/notification.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd {

// A catalog's rows in memory, but for uses: all of them, or those that come before the chunks, which are many.
class CollectedRows final : public RowSink {
 public:
  enum class Which { kBeforeChunks, kAll };
  explicit CollectedRows(Which which) : which_(which) {}

  bool Take(RowBatch batch) override {
    const auto add = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(rows.spaces, batch.spaces);
    add(rows.segments, batch.segments);
    add(rows.clears, batch.clears);
    add(rows.pins, batch.pins);
    if (which_ == Which::kBeforeChunks) return batch.chunks.empty() && batch.uses.empty();
    add(rows.chunks, batch.chunks);
    return true;
  }
  void Loaded(const LoadReport& r) override {
    report = r;
    ended.Notify();
  }

  RowBatch rows;
  LoadReport report;
  absl::Notification ended;  // then nobody else touches the two above

 private:
  const Which which_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_COLLECTED_ROWS_H_
