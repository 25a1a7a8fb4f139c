#ifndef KVIST_STORAGE_CODEC_FORMAT_H_
#define KVIST_STORAGE_CODEC_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "storage/codec/method.h"
#include "storage/codec/shape.h"

// How an encoded shard lies, wherever it is. Little-endian, and it says of itself all that decoding needs.
//
//   | Header 96 B | PartEntry of matrix 0 | of matrix 1 | ... | part of matrix 0 | part of matrix 1 | ...
//     0             96                      112               96 + 16 * matrices
//
// Parts follow each other without gaps, in the order of the payload's matrices, so each can be read, checked and decoded by itself. A
// header vouches for the directory, the directory for the parts. What a part holds is its method's:
//
//   lossless  lossless.h, of opaque bytes opaque.h     int8, fp8  scaled.h     int4  int4.h     strongest  anchored.h
namespace kvist::codec {

inline constexpr uint32_t kMagic = 0x4443'564b;  // "KVCD"
inline constexpr uint16_t kFormatVersion = 1;
static_assert(std::endian::native == std::endian::little, "what lies in memory is what is encoded");

struct Header {
  uint32_t magic;
  uint16_t version;
  Method method;
  Element element;
  uint32_t pages;  // Shape
  uint32_t layers;
  uint32_t segments;
  uint32_t keys;
  uint32_t tiles;
  uint32_t tokens;
  uint32_t channels;
  uint32_t group;  // Parameters
  uint32_t outliers;
  uint32_t anchor;
  uint16_t key_error[3];
  uint16_t other_error[3];
  uint32_t reserved;   // zero
  uint64_t decoded;    // bytes of the payload: what the shape says
  uint64_t encoded;    // bytes of all of it
  uint64_t directory;  // XXH3-64 of the directory
  uint64_t checksum;   // XXH3-64 of what is before
};
static_assert(sizeof(Header) == 96 && std::is_trivially_copyable_v<Header>);
static_assert(offsetof(Header, magic) == 0 && offsetof(Header, version) == 4 && offsetof(Header, method) == 6);
static_assert(offsetof(Header, element) == 7 && offsetof(Header, pages) == 8 && offsetof(Header, layers) == 12);
static_assert(offsetof(Header, segments) == 16 && offsetof(Header, keys) == 20 && offsetof(Header, tiles) == 24);
static_assert(offsetof(Header, tokens) == 28 && offsetof(Header, channels) == 32 && offsetof(Header, group) == 36);
static_assert(offsetof(Header, outliers) == 40 && offsetof(Header, anchor) == 44 && offsetof(Header, key_error) == 48);
static_assert(offsetof(Header, other_error) == 54 && offsetof(Header, reserved) == 60 && offsetof(Header, decoded) == 64);
static_assert(offsetof(Header, encoded) == 72 && offsetof(Header, directory) == 80 && offsetof(Header, checksum) == 88);

struct PartEntry {
  uint64_t checksum;  // XXH3-64 of the part, seeded with its matrix's number: two parts can't change places
  uint32_t bytes;     // of the part
  uint32_t reserved;  // zero
};
static_assert(sizeof(PartEntry) == 16 && std::is_trivially_copyable_v<PartEntry>);
static_assert(offsetof(PartEntry, checksum) == 0 && offsetof(PartEntry, bytes) == 8 && offsetof(PartEntry, reserved) == 12);

// Where the first part begins.
constexpr uint64_t PartsAt(uint64_t matrices) { return sizeof(Header) + matrices * sizeof(PartEntry); }

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_FORMAT_H_
