#ifndef KVIST_STORAGE_SSD_FORMAT_H_
#define KVIST_STORAGE_SSD_FORMAT_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "storage/base/ids.h"
#include "storage/base/units.h"
#include "storage/pool/slot_header.h"

// How chunks lie on a disk. Everything is in units of 4 KiB, little-endian, and says what it is, where it is, and of which time: bytes
// that are found at a place are checked against what should be there, so that torn, misdirected, stale and foreign ones are told apart.
//
//   segment file "segment-00000007", preallocated:
//   | SegmentHeader | record | record | ...                                     | SegmentHeader, again |
//     unit 0          unit 1                                                      last unit
//
//   record = a slot as it lies in DRAM, written and read by direct I/O without a copy:
//   | RecordHeader 512 B | checksum of layer 0 | ... | layer 447 | payload: [layer][layer_bytes], padded to 4 KiB |
//     0                    512                         4088        4096
//
// Records follow each other without gaps, in the order of their sequence numbers, so a segment can be read without the catalog: the
//   first place that holds no record of this segment's epoch is behind its last one, or damaged; whoever looks for records behind a
//   damaged one goes on unit by unit, and can: a record is known by its seal. Before a durable record there is never a gap.
// The seal is an HMAC with the segment's secret, which is drawn when the segment is opened and never leaves the node: payload is what
//   engines choose, and nobody shall be able to choose one that passes for a record. It covers the runs' checksums, too: a disk that
//   tears the header's unit between two sectors may leave the checksums and the payload of the record that lay here before.
// `checksum` says the same of accidents, without a secret: so a record that lies where it doesn't belong is told from a damaged one.
// A segment that is used again gets a new epoch and a new secret: what it held before is no record any more. Both of its headers are
//   written before it is; of two that differ the one with the higher epoch counts.
// record.h seals and checks records, segment_header.h the other ones.
namespace kvist::ssd {

inline constexpr uint64_t kSegmentMagic = 0x3147'4553'5453'564b;  // "KVSTSEG1"
inline constexpr uint64_t kStoreMagic = 0x3152'4944'5453'564b;    // "KVSTDIR1"
inline constexpr uint32_t kRecordMagic = 0x4352'564b;             // "KVRC"
inline constexpr uint32_t kFormatVersion = 1;

inline constexpr Bytes kUnit = KiB(4);
inline constexpr Bytes kHeaderBytes = kSlotHeaderBytes;
inline constexpr Bytes kChecksumsAt = kSlotChecksumsAt;
inline constexpr uint32_t kLayersMax = kSlotLayersMax;
static_assert(kHeaderBytes == kUnit);
static_assert(std::endian::native == std::endian::little, "what lies in memory is what lies on the disk");

// Devices (directories) of a store. A segment's number says on which it is: so a place does, and no device knows of another's numbers.
inline constexpr uint32_t kDevicesMax = 16;
constexpr uint32_t DeviceOf(uint32_t segment) { return segment % kDevicesMax; }
// Shards of a chunk lie on different devices, so that one load has them all at work.
constexpr uint32_t DeviceFor(uint32_t shard, uint32_t devices) { return shard % devices; }

using Secret = std::array<uint8_t, 32>;
using Seal = std::array<uint8_t, 32>;

// The identity of a store: drawn when its directory is made. A segment of another store is foreign.
using StoreId = Digest<struct StoreIdTag>;

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t segment;  // its number, as in the file's name
  uint64_t epoch;    // of this use, from 1; rises over all segments of a device
  uint64_t units;    // of the file, both headers included
  StoreId store;
  Secret secret;      // seals this epoch's records
  uint64_t checksum;  // XXH3-64 of what is before
};
static_assert(sizeof(SegmentHeader) == 104 && std::is_trivially_copyable_v<SegmentHeader>);
static_assert(offsetof(SegmentHeader, magic) == 0 && offsetof(SegmentHeader, version) == 8);
static_assert(offsetof(SegmentHeader, segment) == 12 && offsetof(SegmentHeader, epoch) == 16);
static_assert(offsetof(SegmentHeader, units) == 24 && offsetof(SegmentHeader, store) == 32);
static_assert(offsetof(SegmentHeader, secret) == 64 && offsetof(SegmentHeader, checksum) == 96);

// File "store" of each of a store's directories, whose other files are segments.
struct StoreFile {
  uint64_t magic;
  uint32_t version;
  uint32_t device;  // below kDevicesMax: which of the store's directories this is, for ever
  StoreId store;
  uint64_t checksum;  // XXH3-64 of what is before
};
static_assert(sizeof(StoreFile) == 56 && std::is_trivially_copyable_v<StoreFile>);
static_assert(offsetof(StoreFile, magic) == 0 && offsetof(StoreFile, version) == 8 && offsetof(StoreFile, device) == 12);
static_assert(offsetof(StoreFile, store) == 16 && offsetof(StoreFile, checksum) == 48);

enum class RecordKind : uint8_t {
  kShard = 1,
  kSpace = 2,  // payload: what the daemon needs to know of a space; before the first shard of that space in a segment
  kClear = 3,  // no payload: what has a lower sequence number and this space (all spaces when it is zero) is gone
};
// How a payload lies: as in DRAM, or made by a codec that the daemon has numbered so, in one run and with fewer bytes.
enum class Codec : uint8_t { kRaw = 0 };
enum class SlotOrder : uint8_t { kLayerMajor = 1, kPageMajor = 2 };

struct RecordHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t epoch;     // the segment's
  uint32_t segment;   // where it was meant to be
  uint32_t unit;      //
  uint64_t sequence;  // rises over all records of the store: of two of one chunk and shard the higher is the newer
  RecordKind kind;
  Codec codec;
  SlotOrder order;
  uint8_t has_parent;  // else it is the first of its chain, or hangs on nothing
  uint16_t group;
  uint16_t shard;
  uint16_t shards;  // of the chunk in this group
  uint16_t reserved;
  uint32_t position;  // in its chain, 0 for the first chunk; chained groups
  SpaceDigest space;
  ChunkKey key;
  ChunkKey parent;
  uint32_t layers;
  // Checksums: layers, or 1 where pages hold all layers or a codec has taken them together; 0 without payload
  uint32_t runs;
  uint64_t layer_bytes;    // of one layer as it lies in DRAM; with a run for each layer it is a run's length
  uint64_t payload_bytes;  // as stored, without padding
  uint64_t raw_bytes;      // decoded
  StoreId store;
  uint8_t unused[208];  // zero
  uint64_t tail;        // XXH3-64 of the payload's last unit with its padding, which is zero: a torn write lacks its end
  uint64_t checksum;    // XXH3-64 of the runs' checksums, seeded with that of what is before
  Seal seal;            // HMAC-SHA-256 of what is before and of the runs' checksums, with the segment's secret
  uint8_t padding[48];  // zero
};
static_assert(sizeof(RecordHeader) == kChecksumsAt.value && std::is_trivially_copyable_v<RecordHeader>);
static_assert(offsetof(RecordHeader, magic) == 0 && offsetof(RecordHeader, version) == 4 &&
              offsetof(RecordHeader, epoch) == 8);
static_assert(offsetof(RecordHeader, segment) == 16 && offsetof(RecordHeader, unit) == 20);
static_assert(offsetof(RecordHeader, sequence) == 24 && offsetof(RecordHeader, kind) == 32);
static_assert(offsetof(RecordHeader, codec) == 33 && offsetof(RecordHeader, order) == 34);
static_assert(offsetof(RecordHeader, has_parent) == 35 && offsetof(RecordHeader, group) == 36);
static_assert(offsetof(RecordHeader, shard) == 38 && offsetof(RecordHeader, shards) == 40);
static_assert(offsetof(RecordHeader, reserved) == 42 && offsetof(RecordHeader, position) == 44);
static_assert(offsetof(RecordHeader, space) == 48 && offsetof(RecordHeader, key) == 80);
static_assert(offsetof(RecordHeader, parent) == 112 && offsetof(RecordHeader, layers) == 144);
static_assert(offsetof(RecordHeader, runs) == 148 && offsetof(RecordHeader, layer_bytes) == 152);
static_assert(offsetof(RecordHeader, payload_bytes) == 160 && offsetof(RecordHeader, raw_bytes) == 168);
static_assert(offsetof(RecordHeader, store) == 176 && offsetof(RecordHeader, unused) == 208);
static_assert(offsetof(RecordHeader, tail) == 416 && offsetof(RecordHeader, checksum) == 424);
static_assert(offsetof(RecordHeader, seal) == 432 && offsetof(RecordHeader, padding) == 464);

// Where a record lies. 8 bytes: the index has one for each shard.
using Place = DiskPlace;
constexpr ByteOffset OffsetOf(Place place) { return {uint64_t{place.unit} * kUnit.value}; }
static_assert(sizeof(Place) == 8);

// The most payload of a record: what 32 bits of units hold.
inline constexpr Bytes kPayloadMax = kUnit * (uint64_t{UINT32_MAX} - 1);
// Units that a record with so much payload, at most kPayloadMax, takes.
constexpr uint32_t UnitsFor(Bytes payload) {
  return static_cast<uint32_t>((kHeaderBytes + AlignUp(payload, kUnit)) / kUnit);
}

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_FORMAT_H_
