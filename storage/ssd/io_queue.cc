#include "storage/ssd/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "storage/base/check.h"

namespace kvist::ssd {
IoQueue::IoQueue(Device* device, Options options) : device_(device), options_(options) {
  pieces_.resize(device->depth());
  for (uint32_t i = 0; i < pieces_.size(); ++i) free_pieces_.push_back(static_cast<uint32_t>(pieces_.size()) - 1 - i);
}

IoQueue::Handle IoQueue::Submit(Lane lane, IoOwner* owner, const Io& io) {
  Handle handle;
  if (free_extents_.empty()) {
    handle = static_cast<Handle>(extents_.size());
    extents_.emplace_back();
  } else {
    handle = free_extents_.back();
    free_extents_.pop_back();
  }
  extents_[handle] = {owner, io, lane, 0, 0, 0, true};
  queues_[static_cast<int>(lane)].push_back(handle);
  waiting_[static_cast<int>(lane)] += Bytes{io.bytes.size()};
  ++live_;
  return handle;
}

void IoQueue::Cancel(Handle handle) {
  Extent& extent = extents_[handle];
  if (extent.queued && extent.error == 0) extent.error = ECANCELED;
}

void IoQueue::Pump() {
  while (Issue(Lane::kControl)) {}
  while (reading_ < options_.read_budget && Issue(Lane::kUrgent)) {}
  while (urgent_ == 0 && reading_ < ReadsWanted() && Issue(Lane::kRead)) {}
  const bool reads = reading_.value > 0 || !queues_[static_cast<int>(Lane::kUrgent)].empty() ||
                     !queues_[static_cast<int>(Lane::kRead)].empty();
  const Bytes write_budget = reads ? options_.write_beside_reads : options_.write_budget;
  while (writing_ < write_budget && Issue(Lane::kWrite)) {}
  if (std::exchange(issued_, false)) device_->Kick();
}

Bytes IoQueue::ReadsWanted() const {
  const Bytes left = reading_ + waiting_[static_cast<int>(Lane::kRead)];
  return std::min(options_.read_budget, std::max(options_.last_reads, Bytes{left.value / 2}));
}

// One piece of the lane's first extent; false when there is none, or no place in the device.
bool IoQueue::Issue(Lane lane) {
  std::deque<Handle>& queue = queues_[static_cast<int>(lane)];
  while (!queue.empty() && extents_[queue.front()].error != 0) {  // failed or cancelled before all of it was in flight
    const Handle handle = queue.front();
    queue.pop_front();
    Extent& extent = extents_[handle];
    waiting_[static_cast<int>(lane)] -= Bytes{extent.io.bytes.size() - extent.submitted};
    extent.queued = false;
    if (extent.pieces == 0) Finish(handle);
  }
  if (queue.empty() || free_pieces_.empty()) return false;
  const Handle handle = queue.front();
  Extent& extent = extents_[handle];
  // What is left that isn't worth a piece goes with the last one: records are a unit longer than what engines store.
  const uint64_t left = extent.io.bytes.size() - extent.submitted, whole = options_.piece.value;
  const uint64_t bytes = left < whole + whole / 2 ? left : whole;
  const uint32_t piece = free_pieces_.back();
  free_pieces_.pop_back();
  pieces_[piece] = {handle, {bytes}};
  Io io = extent.io;
  io.offset = io.offset + Bytes{extent.submitted};
  io.bytes = bytes == 0 ? io.bytes : io.bytes.subspan(extent.submitted, bytes);
  io.tag = piece;
  extent.submitted += bytes;
  ++extent.pieces;
  if (lane == Lane::kUrgent && extent.submitted == bytes) ++urgent_;
  ++in_flight_;
  waiting_[static_cast<int>(lane)] -= Bytes{bytes};
  (lane == Lane::kWrite ? writing_ : reading_) += Bytes{bytes};
  if (extent.submitted == extent.io.bytes.size()) {
    extent.queued = false;
    queue.pop_front();
  }
  device_->Submit(io);
  issued_ = true;
  return true;
}

void IoQueue::Complete(const Completion& completion) {
  KVIST_CHECK(completion.tag < pieces_.size());
  const Piece piece = pieces_[completion.tag];
  free_pieces_.push_back(static_cast<uint32_t>(completion.tag));
  --in_flight_;
  Extent& extent = extents_[piece.extent];
  (extent.lane == Lane::kWrite ? writing_ : reading_) -= piece.bytes;
  KVIST_CHECK(extent.pieces > 0);
  --extent.pieces;
  if (completion.error != 0 && (extent.error == 0 || extent.error == ECANCELED)) extent.error = completion.error;
  if (extent.pieces == 0 && !extent.queued) ended_.push_back(piece.extent);
}

bool IoQueue::TellNext() {
  if (ended_.empty()) return false;
  const Handle handle = ended_.front();
  ended_.pop_front();
  Finish(handle);
  return true;
}

void IoQueue::Finish(Handle handle) {
  const Extent extent = extents_[handle];
  free_extents_.push_back(handle);
  --live_;
  if (extent.lane == Lane::kUrgent && extent.submitted > 0) --urgent_;
  extent.owner->Ended(extent.io.tag, extent.error);  // may submit more
}

}  // namespace kvist::ssd
