#ifndef KVIST_DAEMON_CORE_FILLS_H_
#define KVIST_DAEMON_CORE_FILLS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/chunk_table.h"
#include "storage/base/ids.h"

namespace kvist::core {

// A chunk that is being stored by the ranks of one instance.
struct Fill {
  uint64_t serial = 0;  // never reused: tells this half store from a later one of the same chunk
  InstanceId writer;
  uint64_t all = 0;      // a bit per shard
  uint64_t claimed = 0;  // shards whose copy has started
  uint64_t stored = 0;   // shards whose copy is complete
  bool doomed = false;   // never to be sealed: ends as soon as no copy runs
  absl::Time deadline;   // half stores expire: a rank that never comes must not keep the others' slots

  bool sealed() const { return stored == all; }
};

// The half stores. Lifecycle of one: Begin, when its chunk is kFilling -> ranks claim and store their shards -> End (sealed, or doomed and
// quiet), while it still is. Its chunk names it, where it would name its place on disk, of which it has none yet.
// Each operation is O(1), the list of free records amortised, but for Shorten. Threads: one.
class Fills {
 public:
  explicit Fills(ChunkTable* chunks);

  Fill& Begin(ChunkIndex chunk, InstanceId writer, uint32_t shards, absl::Time deadline);
  // Null: nobody is storing it.
  Fill* Find(ChunkIndex chunk);
  void End(ChunkIndex chunk);

  // None that runs has a later deadline any more. Fills that begin afterwards must not have an earlier one.
  void Shorten(absl::Time latest);

  // The chunk of the oldest that `writer` has begun before the serial `below`, once each; kNoChunk: none is left.
  ChunkIndex TakeOf(InstanceId writer, uint64_t below);
  // Fills that begin from now on have this serial or a higher one.
  uint64_t next_serial() const { return next_serial_; }

  // Whether one's deadline is at or before `now`, and its chunk; once each.
  bool Due(absl::Time now) const;
  ChunkIndex TakeDue();

  size_t size() const { return size_; }
  // Stops the process unless each is its chunk's, in the rings it has to be in, and each of these in its order.
  void CheckInvariants() const;

 private:
  // Two rings of records, each in the order in which they began: of a writer, and of all, which is the order of deadlines, too, because all fills have
  // the same time to live (Shorten keeps it so). A ring begins with a record that is no half store.
  enum Ring { kOfWriter, kOfAll, kRings };
  struct Link {
    uint32_t before = 0;
    uint32_t after = 0;
  };
  struct Record {
    Fill fill;
    ChunkIndex chunk = kNoChunk;
    Link links[kRings];  // to itself: in none
  };
  static constexpr uint32_t kRecordsPerSection = 1024;
  static constexpr uint32_t kAll = 0;  // where the ring of all begins

  Record& At(uint32_t number) { return sections_[number / kRecordsPerSection][number % kRecordsPerSection]; }
  const Record& At(uint32_t number) const { return sections_[number / kRecordsPerSection][number % kRecordsPerSection]; }
  uint32_t New();
  void Free(uint32_t number);
  void Append(Ring ring, uint32_t begin, uint32_t number);
  void Leave(Ring ring, uint32_t number);
  void LeaveWriter(uint32_t number);

  ChunkTable& chunks_;
  std::vector<std::unique_ptr<Record[]>> sections_;  // never moved: none grows in one large step
  uint32_t records_ = 0;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<InstanceId, uint32_t> of_writer_;  // where its ring begins
  uint64_t next_serial_ = 1;
  size_t size_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_FILLS_H_
