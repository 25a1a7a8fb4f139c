#include "storage/ssd/pin_rows.h"

#include <utility>

namespace kvist::ssd {
namespace {

constexpr size_t kBytesBeside = 256;  // of a change that waits: where it lies, roughly

size_t BytesOf(const PinChange& change) { return kBytesBeside + 2 * change.row.name.size() + change.row.description.size(); }

}  // namespace

void PinRows::Note(std::vector<PinChange> changes) {
  for (PinChange& change : changes) Apply(std::move(change));
  Send();
}

void PinRows::Apply(PinChange change) {
  const size_t bytes = BytesOf(change);
  const auto last = waiting_.find({change.row.space, change.row.name});
  const size_t before = last == waiting_.end() ? 0 : BytesOf(last->second);
  if (bytes > before && bytes_ - before + bytes > kBytesMax) {
    status_.Update(absl::ResourceExhaustedError("more changes of pins wait for the SSD tier's catalog than may"));
    return;
  }
  bytes_ += bytes - before;
  if (last != waiting_.end()) {
    last->second = std::move(change);
  } else {
    Name name{change.row.space, change.row.name};
    waiting_.emplace(std::move(name), std::move(change));
  }
}

void PinRows::Settle(Done done) {
  settling_.push_back(std::move(done));
  Send();
}

void PinRows::Send() {
  if (sending_) return;
  if (waiting_.empty()) {
    if (settling_.empty()) return;
    const absl::Status all = std::exchange(status_, absl::OkStatus());
    for (const Done& done : std::exchange(settling_, {})) done(all);
    return;
  }
  CatalogBatch batch;
  while (!waiting_.empty() && batch.bytes() < kTogether) {
    const auto change = waiting_.extract(waiting_.begin());
    bytes_ -= BytesOf(change.mapped());
    const PinRow& row = change.mapped().row;
    if (change.mapped().ended) {
      batch.ErasePin(row.space, row.name);
    } else {
      batch.Put(row);
    }
  }
  sending_ = true;
  send_(std::move(batch), [this](const absl::Status& status) {
    sending_ = false;
    status_.Update(status);
    Send();
  });
}

}  // namespace kvist::ssd
