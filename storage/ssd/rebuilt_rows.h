#ifndef KVIST_STORAGE_SSD_REBUILT_ROWS_H_
#define KVIST_STORAGE_SSD_REBUILT_ROWS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/ssd/catalog_rows.h"
#include "storage/ssd/format.h"

namespace kvist::ssd {

struct RebuildCounts {
  uint64_t records = 0;      // of all kinds
  uint64_t invalid = 0;      // that say what can't be
  uint64_t superseded = 0;   // shards of which there is a newer record, or one that is believed instead
  uint64_t cleared = 0;      // shards older than a clear of their space
  uint64_t incomplete = 0;   // chunks without all their shards
  uint64_t undescribed = 0;  // chunks of spaces that have no number
  uint64_t chunks = 0;       // rows that came of it
};

// The catalog as the records tell it. Pure: records in, in any order; rows out.
//
//   - Of a shard of a chunk the record with the highest sequence number counts.
//   - What is older than the newest clear of its space, or of all spaces, is gone: nothing that was cleared comes back, wherever the
//     clear's record lies. (Who reuses a segment takes care that a clear's record lives longer than any record it clears.)
//   - A chunk needs all its shards, of one length and codec; how many, and its parent and position, says its newest record. Of a chunk that was
//     being written in another form when the process died the form counts that is whole.
//   - What was evicted and not overwritten yet comes back. That is no loss: it is what was stored.
//   - Parents may be missing.
//
// Lifecycle: Add all -> Finish -> spaces(), clears(), Number -> NextChunks until there are none.
// Threads: one. Memory: 104 bytes a record, and 8 a chunk.
class RebuiltRows {
 public:
  // `believed`: false: only its sequence number counts.
  void Add(const RecordHeader& header, bool believed = true);
  void Finish();

  // Of each space that any record names.
  struct Space {
    SpaceDigest digest;
    // Its kSpace records, the newest first: where its description may be read. Sequence number, place.
    std::map<uint64_t, Place, std::greater<>> descriptions;
  };
  const std::vector<Space>& spaces() const { return spaces_; }
  // The newest of each space, and of all of them.
  std::vector<ClearRow> clears() const;
  // The highest of all records; whatever is written from now on is above it.
  uint64_t highest_sequence() const { return highest_sequence_; }

  // The number that names the space in rows. Chunks of spaces without one are left out.
  void Number(const SpaceDigest& digest, uint32_t number);
  // At most `most` rows more, lower positions first; none: those were all. The last use is 0, and so are the hints.
  std::vector<ChunkRow> NextChunks(size_t most);

  const RebuildCounts& counts() const { return counts_; }

 private:
  struct Shard {
    ChunkKey key;
    ChunkKey parent;
    uint64_t sequence;
    Place place;
    uint32_t position;
    uint32_t units;
    uint32_t space;  // its index here
    uint16_t group;
    uint16_t shard;
    uint16_t shards;
    uint8_t has_parent;
    Codec codec;
  };
  static_assert(sizeof(Shard) == 104);
  // A complete chunk: its shards are at [first, first + Newest().shards).
  struct Chunk {
    uint32_t position;
    uint32_t first;
  };

  uint32_t SpaceIndex(const SpaceDigest& digest);
  uint64_t ClearedBelow(uint32_t space) const;
  void FinishChunk(size_t from, size_t to, size_t* kept);
  bool FinishForm(std::span<const Shard> shards, const Shard& like, size_t* kept);

  std::vector<Shard> shards_;
  std::vector<Chunk> chunks_;
  size_t next_chunk_ = 0;
  std::vector<Space> spaces_;
  std::vector<std::optional<uint32_t>> numbers_;                   // [space]
  absl::flat_hash_map<uint64_t, std::vector<uint32_t>> space_of_;  // by the digest's first word
  std::map<SpaceDigest, ClearRow> clears_;
  uint64_t highest_sequence_ = 0;
  RebuildCounts counts_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_REBUILT_ROWS_H_
