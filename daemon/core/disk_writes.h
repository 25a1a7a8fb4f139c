#ifndef KVIST_DAEMON_CORE_DISK_WRITES_H_
#define KVIST_DAEMON_CORE_DISK_WRITES_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "daemon/core/chunk_table.h"
#include "storage/base/check.h"
#include "storage/base/units.h"

namespace kvist::core {

// Chunks that are being written to disk, numbered in the order in which that began: who waits for writes (a flush, a move) waits for all below a
// number. Each operation is O(log n). Threads: one.
class DiskWrites {
 public:
  // `bytes`: of its slots. A chunk is written once at a time.
  void Begin(ChunkIndex chunk, Bytes bytes) {
    KVIST_CHECK(numbers_.emplace(chunk, next_).second);
    chunks_.emplace(next_++, chunk);
    bytes_ += bytes;
  }
  void End(ChunkIndex chunk, Bytes bytes) {
    const auto write = numbers_.find(chunk);
    KVIST_CHECK(write != numbers_.end());
    chunks_.erase(write->second);
    numbers_.erase(write);
    bytes_ -= bytes;
  }
  bool Has(ChunkIndex chunk) const { return numbers_.contains(chunk); }

  uint64_t next() const { return next_; }  // the number of the next that begins
  bool EndedBelow(uint64_t number) const { return chunks_.empty() || chunks_.begin()->first >= number; }
  Bytes bytes() const { return bytes_; }
  size_t size() const { return numbers_.size(); }
  bool empty() const { return numbers_.empty(); }
  void CheckInvariants() const {
    KVIST_CHECK(chunks_.size() == numbers_.size());
    for (const auto& [number, chunk] : chunks_) KVIST_CHECK(numbers_.at(chunk) == number && number < next_);
  }

 private:
  absl::btree_map<uint64_t, ChunkIndex> chunks_;  // [number]
  absl::flat_hash_map<ChunkIndex, uint64_t> numbers_;
  uint64_t next_ = 1;
  Bytes bytes_{};
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_DISK_WRITES_H_
