#ifndef KVIST_STORAGE_SSD_CATALOG_ROWS_H_
#define KVIST_STORAGE_SSD_CATALOG_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "storage/base/ids.h"
#include "storage/ssd/format.h"

// What the catalog holds, and its bytes. A row is a key and a value; keys sort as rows are to be loaded: kind by kind, and chunks by
// their position, so that a chunk comes after its parent and the starts of all prompts come first.
//
//   kind         key                                                         value
//   0 meta       kind                                                        version | pending 1 | format 4 | store 32 | incarnation 8 |
//                                                                              generation 8 | commits 8 | settled 8, if it isn't an older one's | check
//   1 space      kind | number 4                                             version | digest 32 | description .. | check
//   2 segment    kind | number 4                                             version | state 1 | epoch 8 | secret 32 | check
//   3 clear      kind | space digest 32                                      version | sequence 8 | segment 4 | unit 4 | check
//   4 pin        kind | space 4 | name ..                                    version | description .. | check
//   5 chunk      kind | position 4 | space 4 | group 2 | chunk key 32        version | flags 1 | hints 2 | unused 4 | sequence 8 | units 4 |
//                                                                              codec 1, if flags has bit 1 | parent 32, if it has bit 0 |
//                                                                              {segment 4, unit 4} for each shard | check
//   6 use        kind | period 4 | part 4                                    version | written 8 | {space 4, group 2, chunk key 32} .. | check
//
// Numbers in keys are big-endian, those in values little-endian; `version` is one byte; `check` the low 4 bytes of XXH3-64 over key and
// value before it. A chunk of one shard takes 43 + 64 bytes, 32 less without a parent. Golden bytes: tests/unit/ssd/catalog_rows_test.cc.
//
// Parsing is strict: a row of another version or length, with a wrong check, or that says what can't be, is none. Whoever reads counts it
//   and goes on: what it told is a miss then, or found again in the records' headers.
namespace kvist::ssd {

enum class RowKind : uint8_t { kMeta = 0, kSpace = 1, kSegment = 2, kClear = 3, kPin = 4, kChunk = 5, kUse = 6 };
inline constexpr uint8_t kRowKinds = 7;
inline constexpr uint8_t kRowVersion = 2;               // 1 had no units, and no place of a clear
inline constexpr uint32_t kCatalogFormat = 2;           // of all of this; another one is not read at all
inline constexpr size_t kShardsMax = 1024;              // of a chunk
inline constexpr size_t kRowDescriptionMax = 1u << 20;  // bytes, of spaces and pins
inline constexpr size_t kPinNameMax = 4096;             // bytes
inline constexpr size_t kUsesPerRow = 256;              // chunks
inline constexpr uint32_t kUsePartsMax = 1u << 20;      // of a period

// Which time of which catalog this is; see catalog_stamp.h. One row, written with every commit.
struct MetaRow {
  bool rebuild_pending = true;  // what the segments hold isn't all in here
  uint32_t format = kCatalogFormat;
  StoreId store;
  uint64_t incarnation = 0;  // drawn when this catalog was made
  uint64_t generation = 0;   // counts its opens
  uint64_t commits = 0;
  // Of records with lower sequence numbers this catalog, as far as it goes, tells all that count: others may be without their rows only because
  // its end is lost, or was never committed. 0: it doesn't say.
  uint64_t settled = 0;

  bool operator==(const MetaRow&) const = default;
};

// A space that the daemon has met. Its number names it in the other rows.
struct SpaceRow {
  uint32_t number = 0;
  SpaceDigest digest;
  std::string description;  // the daemon's own words for what it needs to know of it

  bool operator==(const SpaceRow&) const = default;
};

enum class SegmentState : uint8_t {
  kFree = 0,    // what lies there is no longer wanted
  kOpen = 1,    // records are appended
  kFull = 2,    // no more records will come
  kFenced = 3,  // a write or fsync failed: neither read nor used again
};

// Committed before the segment's header is written: a header of an epoch that no row tells of means that this catalog is too old.
struct SegmentRow {
  uint32_t number = 0;
  SegmentState state = SegmentState::kFree;
  uint64_t epoch = 0;
  Secret secret{};

  bool operator==(const SegmentRow&) const = default;
};

// Chunks of the space (of all spaces when it is zero) with a lower sequence number are gone, whatever rows and records say.
struct ClearRow {
  SpaceDigest space;
  uint64_t sequence = 0;
  Place place;  // of the record that says so to a rebuild

  bool operator==(const ClearRow&) const = default;
};

struct PinRow {
  uint32_t space = 0;       // its number
  std::string name;         // whose and which, in the daemon's words
  std::string description;  // what it keeps, likewise

  bool operator==(const PinRow&) const = default;
};

// Which chunk: what one needs to erase its row.
struct ChunkId {
  uint32_t position = 0;  // in its chain; 0 in groups without chains
  uint32_t space = 0;     // its number
  uint16_t group = 0;
  ChunkKey key;

  bool operator==(const ChunkId&) const = default;
};

// A chunk all of whose shards are on disk, flushed.
struct ChunkRow {
  ChunkId id;
  std::optional<ChunkKey> parent;        // of the same space and group
  uint16_t hints = 0;                    // the daemon's bits
  uint64_t sequence = 0;                 // the highest of its records
  uint32_t units = 0;                    // of each of its records: all shards of a chunk are of one shape
  Codec codec = Codec::kRaw;             // of them
  absl::InlinedVector<Place, 1> places;  // [shard], none of them nowhere

  bool operator==(const ChunkRow&) const = default;
};

// A chunk that was used; of any position, and it may be gone.
struct ChunkUse {
  uint32_t space = 0;  // its number
  uint16_t group = 0;
  ChunkKey key;

  bool operator==(const ChunkUse&) const = default;
};

// Chunks that were used in one period of time, as the daemon counts it. They lie together, so that a use costs neither a row of its own nor that the
// chunk's is written again: of a period that no longer matters a few rows go, and that is all there is to forget.
struct UseRow {
  uint32_t period = 0;
  uint32_t part = 0;     // of that period: which row, less than kUsePartsMax
  uint64_t written = 0;  // bytes, in the period until then: the daemon's clock
  std::vector<ChunkUse> chunks;

  bool operator==(const UseRow&) const = default;
};

// The bytes of a row: its key, then its value. `key_bytes` says where the value starts.
struct EncodedRow {
  std::string bytes;
  size_t key_bytes = 0;

  std::string_view key() const { return std::string_view(bytes).substr(0, key_bytes); }
  std::string_view value() const { return std::string_view(bytes).substr(key_bytes); }
};

// Rows must keep the bounds above; to break them is the caller's bug.
EncodedRow Encode(const MetaRow& row);
EncodedRow Encode(const SpaceRow& row);
EncodedRow Encode(const SegmentRow& row);
EncodedRow Encode(const ClearRow& row);
EncodedRow Encode(const PinRow& row);
EncodedRow Encode(const ChunkRow& row);
EncodedRow Encode(const UseRow& row);

// Of rows that are to be erased.
std::string MetaKey();
std::string SegmentKey(uint32_t number);
std::string ClearKey(const SpaceDigest& space);
std::string PinKey(uint32_t space, std::string_view name);
std::string ChunkRowKey(const ChunkId& id);
std::string UseKey(uint32_t period, uint32_t part);

// What kind of row has this key; nothing when there is no such kind.
std::optional<RowKind> KindOf(std::string_view key);

std::optional<MetaRow> ParseMeta(std::string_view key, std::string_view value);
std::optional<SpaceRow> ParseSpace(std::string_view key, std::string_view value);
std::optional<SegmentRow> ParseSegment(std::string_view key, std::string_view value);
std::optional<ClearRow> ParseClear(std::string_view key, std::string_view value);
std::optional<PinRow> ParsePin(std::string_view key, std::string_view value);
std::optional<ChunkRow> ParseChunk(std::string_view key, std::string_view value);
std::optional<UseRow> ParseUse(std::string_view key, std::string_view value);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_CATALOG_ROWS_H_
