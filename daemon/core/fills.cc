#include "daemon/core/fills.h"

#include <algorithm>

#include "storage/base/check.h"

namespace kvist::core {

Fill& Fills::Begin(ChunkIndex chunk, InstanceId writer, uint32_t shards, absl::Time deadline) {
  Fill fill;
  fill.serial = next_serial_++;
  fill.writer = writer;
  fill.all = shards == 64 ? ~uint64_t{0} : (uint64_t{1} << shards) - 1;
  fill.deadline = deadline;
  // Two out for one in: those that ended in time don't pile up until their deadline.
  for (int i = 0; i < 2 && !by_deadline_.empty() && !Runs(by_deadline_.front()); ++i) by_deadline_.pop_front();
  by_deadline_.push_back({deadline, chunk, fill.serial});
  by_writer_[writer].insert(chunk);
  const auto [at, fresh] = fills_.emplace(chunk, fill);
  KVIST_CHECK(fresh);
  return at->second;
}

Fill* Fills::Find(ChunkIndex chunk) {
  const auto found = fills_.find(chunk);
  return found == fills_.end() ? nullptr : &found->second;
}

void Fills::End(ChunkIndex chunk) {
  const auto found = fills_.find(chunk);
  KVIST_CHECK(found != fills_.end());
  const auto of_writer = by_writer_.find(found->second.writer);
  of_writer->second.erase(chunk);
  if (of_writer->second.empty()) by_writer_.erase(of_writer);
  fills_.erase(found);
}

bool Fills::Runs(const Deadline& due) const {
  const auto found = fills_.find(due.chunk);
  return found != fills_.end() && found->second.serial == due.serial;
}

ChunkIndex Fills::TakeDue() {
  const Deadline due = by_deadline_.front();
  by_deadline_.pop_front();
  return Runs(due) ? due.chunk : kNoChunk;
}

void Fills::Shorten(absl::Time latest) {
  for (Deadline& due : by_deadline_) due.deadline = std::min(due.deadline, latest);
  for (auto& [chunk, fill] : fills_) fill.deadline = std::min(fill.deadline, latest);
}

ChunkIndex Fills::NextOf(InstanceId writer, ChunkIndex from) const {
  const auto found = by_writer_.find(writer);
  if (found == by_writer_.end()) return kNoChunk;
  const auto next = found->second.lower_bound(from);
  return next == found->second.end() ? kNoChunk : *next;
}

}  // namespace kvist::core
