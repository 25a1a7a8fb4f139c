#ifndef KVIST_STORAGE_SSD_RECORD_H_
#define KVIST_STORAGE_SSD_RECORD_H_

#include <cstddef>
#include <span>

#include "storage/ssd/format.h"
#include "storage/ssd/sealer.h"
#include "storage/ssd/verdict.h"

// Sealing a slot, which makes it a record, and checking what came back. `record` points to a record's first byte in memory; how much
// of it must be there is said for each. Threads: any, one at a time for a record and for a Sealer.
namespace kvist::ssd {

// Who has the runs' checksums computed: this call, or whoever filled the slot (cuda's Verify::kAlways). Theirs also tell of a bit that
// flipped in DRAM meanwhile.
enum class Checksums : uint8_t { kCompute, kKeep };

// Makes the slot the record at `place` of the segment's use: the payload's padding becomes zero, the header place is filled. In steps,
// for owners that have other things to look after: 16 MiB of checksums take a millisecond or more.
//
// `header`: what it is: sequence, kind, codec, order, has_parent, group, shard, shards, position, space, key, parent, layers, runs and
// the lengths; the other fields are set here. The slot is this one's until Go says that it is a record, or this is destroyed.
// Errors: stops the process when the lengths contradict each other (WellFormed).
class RecordSealing {
 public:
  RecordSealing(std::byte* slot, const RecordHeader& header, const SegmentHeader& segment, Place place, Checksums checksums);

  // Goes on with runs that have together at most `*budget`, or with one, and takes what it has done from the budget. true: it is a record.
  bool Go(Bytes* budget, Sealer* sealer);

 private:
  std::byte* const slot_;
  RecordHeader header_;
  const Secret secret_;
  uint32_t next_run_ = 0;
};

// The same at once.
void SealRecord(std::byte* slot, const RecordHeader& header, const SegmentHeader& segment, Place place, Checksums checksums,
                Sealer* sealer);

// Whether the lengths agree and are within bounds: runs is the number of layers, or 1, or 0 without payload; what a codec has made has one; a record
// fits into 32 bits of units.
bool WellFormed(const RecordHeader& header);

// What the header place of `record`, kHeaderBytes in memory, holds, which was read from `place` of the segment. kGood: `*header` is it,
// it is of this segment's use and well-formed. Nothing is said of the payload.
Verdict CheckHeader(const std::byte* record, const SegmentHeader& segment, Place place, Sealer* sealer,
                    RecordHeader* header);

// Which shard is meant.
struct Identity {
  SpaceDigest space;
  ChunkKey key;
  GroupId group;
  Rank shard;
};
inline bool Is(const RecordHeader& header, const Identity& identity) {
  return header.kind == RecordKind::kShard && header.space == identity.space && header.key == identity.key &&
         header.group == identity.group.value && header.shard == identity.shard.value;
}

// A run's place in the payload.
constexpr ByteOffset RunOffset(const RecordHeader& header, uint32_t run) { return {header.layer_bytes * run}; }
constexpr Bytes RunBytes(const RecordHeader& header) {
  return header.runs == 1 ? Bytes{header.payload_bytes} : Bytes{header.layer_bytes};
}

// Whether run `run` (below header.runs) is as it was written. The header place and the run are in memory; the header has passed CheckHeader.
bool RunMatches(const std::byte* record, const RecordHeader& header, uint32_t run);

// kGood when all runs match; else kTorn or kCorrupt. The whole record is in memory and its header has passed CheckHeader.
// In a payload's last unit a flipped bit can't be told from a torn write, and is called torn.
Verdict CheckPayload(const std::byte* record, const RecordHeader& header);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_RECORD_H_
