#include "daemon/core/fills.h"

#include <algorithm>

#include "storage/base/check.h"

namespace kvist::core {

Fills::Fills(ChunkTable* chunks) : chunks_(*chunks) {
  const uint32_t all = New();
  KVIST_CHECK(all == kAll);
}

uint32_t Fills::New() {
  uint32_t number = records_;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else {
    if (number % kRecordsPerSection == 0) sections_.push_back(std::make_unique<Record[]>(kRecordsPerSection));
    ++records_;
  }
  Record& record = At(number);
  record = {};
  for (Link& link : record.links) link = {number, number};
  return number;
}

void Fills::Free(uint32_t number) { free_.push_back(number); }

void Fills::Append(Ring ring, uint32_t begin, uint32_t number) {
  Link& first = At(begin).links[ring];
  At(number).links[ring] = {first.before, begin};
  At(first.before).links[ring].after = number;
  first.before = number;
}

void Fills::Leave(Ring ring, uint32_t number) {
  Link& link = At(number).links[ring];
  At(link.before).links[ring].after = link.after;
  At(link.after).links[ring].before = link.before;
  link = {number, number};
}

void Fills::LeaveWriter(uint32_t number) {
  const Link link = At(number).links[kOfWriter];
  Leave(kOfWriter, number);
  if (link.before != link.after || link.before == number) return;  // else it was the last of them, or had left before
  of_writer_.erase(At(link.before).fill.writer);
  Free(link.before);
}

Fill& Fills::Begin(ChunkIndex chunk, InstanceId writer, uint32_t shards, absl::Time deadline) {
  KVIST_CHECK(chunks_[chunk].state == ChunkState::kFilling);
  const auto [ring, fresh] = of_writer_.try_emplace(writer, 0);
  if (fresh) {
    ring->second = New();
    At(ring->second).fill.writer = writer;
  }
  const uint32_t number = New();
  Record& record = At(number);
  record.chunk = chunk;
  record.fill.serial = next_serial_++;
  record.fill.writer = writer;
  record.fill.all = shards == 64 ? ~uint64_t{0} : (uint64_t{1} << shards) - 1;
  record.fill.deadline = deadline;
  Append(kOfWriter, ring->second, number);
  Append(kOfAll, kAll, number);
  chunks_[chunk].place = {.segment = number, .unit = 0};
  ++size_;
  return record.fill;
}

Fill* Fills::Find(ChunkIndex chunk) {
  const Chunk& c = chunks_[chunk];
  return c.state == ChunkState::kFilling ? &At(c.place.segment).fill : nullptr;
}

void Fills::End(ChunkIndex chunk) {
  Chunk& c = chunks_[chunk];
  KVIST_CHECK(c.state == ChunkState::kFilling);
  const uint32_t number = c.place.segment;
  KVIST_CHECK(At(number).chunk == chunk);
  c.place = {};
  Leave(kOfAll, number);
  LeaveWriter(number);
  Free(number);
  --size_;
}

bool Fills::Due(absl::Time now) const {
  const uint32_t first = At(kAll).links[kOfAll].after;
  return first != kAll && At(first).fill.deadline <= now;
}

ChunkIndex Fills::TakeDue() {
  const uint32_t first = At(kAll).links[kOfAll].after;
  Leave(kOfAll, first);
  return At(first).chunk;
}

void Fills::Shorten(absl::Time latest) {
  for (uint32_t n = At(kAll).links[kOfAll].after; n != kAll; n = At(n).links[kOfAll].after)
    At(n).fill.deadline = std::min(At(n).fill.deadline, latest);
}

ChunkIndex Fills::TakeOf(InstanceId writer, uint64_t below) {
  const auto ring = of_writer_.find(writer);
  if (ring == of_writer_.end()) return kNoChunk;
  const uint32_t first = At(ring->second).links[kOfWriter].after;
  if (At(first).fill.serial >= below) return kNoChunk;
  LeaveWriter(first);
  return At(first).chunk;
}

void Fills::CheckInvariants() const {
  size_t in_rings = 0;
  const auto walk = [&](Ring ring, uint32_t begin) {
    uint64_t serial = 0;
    absl::Time deadline = absl::InfinitePast();
    size_t count = 0;
    for (uint32_t n = At(begin).links[ring].after; n != begin; n = At(n).links[ring].after, ++count) {
      const Record& record = At(n);
      KVIST_CHECK(At(record.links[ring].before).links[ring].after == n &&
                  At(record.links[ring].after).links[ring].before == n);
      KVIST_CHECK(record.fill.serial > serial && record.fill.deadline >= deadline);
      KVIST_CHECK(chunks_[record.chunk].state == ChunkState::kFilling && chunks_[record.chunk].place.segment == n);
      if (ring == kOfWriter) KVIST_CHECK(record.fill.writer == At(begin).fill.writer);
      serial = record.fill.serial;
      deadline = record.fill.deadline;
    }
    return count;
  };
  for (const auto& [writer, begin] : of_writer_) {
    KVIST_CHECK(At(begin).fill.writer == writer);
    const size_t count = walk(kOfWriter, begin);
    KVIST_CHECK(count > 0);
    in_rings += count;
  }
  KVIST_CHECK(walk(kOfAll, kAll) <= size_ && in_rings <= size_);  // those that were taken are in none
  KVIST_CHECK(records_ == free_.size() + size_ + of_writer_.size() + 1);
}

}  // namespace kvist::core
