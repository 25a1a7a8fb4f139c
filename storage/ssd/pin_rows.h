#ifndef KVIST_STORAGE_SSD_PIN_ROWS_H_
#define KVIST_STORAGE_SSD_PIN_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd {

// A pin as its owner wants it to be found by the next start; or not to be.
struct PinChange {
  PinRow row;
  bool ended = false;  // then the row's description says nothing
};

// Pins' rows on their way into the catalog, one batch at a time. Of a pin that changes again before its row was sent only the last is, so who
// pins and unpins faster than the disk commits, or while it is full, costs memory for each name once, and all of it kBytesMax.
//
// Threads: one, the owner's, on which what `send` is given is called, too, perhaps within the call.
class PinRows {
 public:
  using Done = std::function<void(const absl::Status&)>;
  static constexpr size_t kBytesMax = size_t{64} << 20;

  // `send`: has a batch committed, in the order of the calls, and says how that ended.
  explicit PinRows(std::function<void(CatalogBatch, Done)> send) : send_(std::move(send)) {}

  // What has no room is dropped; who settles hears that.
  void Note(std::vector<PinChange> changes);
  // `done`: when nothing waits any more; or why some of what was noted since the last one heard won't be found.
  void Settle(Done done);

 private:
  static constexpr size_t kTogether = size_t{1} << 20;  // bytes
  using Name = std::pair<uint32_t, std::string>;        // space, name

  void Apply(PinChange change);
  void Send();

  const std::function<void(CatalogBatch, Done)> send_;
  std::map<Name, PinChange> waiting_;
  size_t bytes_ = 0;  // of them
  std::vector<Done> settling_;
  absl::Status status_;  // what nobody has heard yet
  bool sending_ = false;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_PIN_ROWS_H_
