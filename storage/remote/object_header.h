#ifndef KVIST_STORAGE_REMOTE_OBJECT_HEADER_H_
#define KVIST_STORAGE_REMOTE_OBJECT_HEADER_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "storage/base/units.h"

// How an object lies in a store beyond the node, little-endian:
//
//   | ObjectHeader 192 B | body: the shard as the caller has it, or encrypted, of the same length |
//     0                    192
//
//   0    magic "KVISTOBJ"     8  version          12 cipher  13 zero
//   16   epoch                24 body_bytes       32 checksum of the body as it lies there
//   40   nonce, 12 B          52 zero             56 tag, 16 B: both zero when it isn't encrypted
//   72   identity, 32 B       104 label, 48 B     152 header_checksum   160 seal, 32 B
//
// A store may lose, mix up, cut off, keep too long and invent objects: the header says what it is, of which time, and how long, and is
// sealed with a secret that the store doesn't have. The checksums tell accidents from forgeries. sealed_object.h seals and checks.
// Without encryption the seal covers the body by a checksum only (XXH3-64), which somebody who may write to the store can match with
// another body: whoever doesn't trust the store encrypts.
namespace kvist::remote {

inline constexpr uint64_t kObjectMagic = 0x4a42'4f54'5349'564b;  // "KVISTOBJ"
inline constexpr uint32_t kObjectVersion = 1;
static_assert(std::endian::native == std::endian::little, "what lies in memory is what lies in the store");

enum class Cipher : uint8_t { kNone = 0, kAes256Gcm = 1 };

// What the caller says of the body: codec, shape. Not interpreted here; sealed with the header.
using Label = std::array<std::byte, 48>;

struct ObjectHeader {
  uint64_t magic;
  uint32_t version;
  Cipher cipher;
  uint8_t zero[3];
  uint64_t epoch;       // the caller's: of two of a name the one with the higher counts, and a clear raises it
  uint64_t body_bytes;  // without this header
  uint64_t checksum;    // XXH3-64 of the body as it lies there
  std::array<uint8_t, 12> nonce;
  uint32_t zero_too;
  std::array<uint8_t, 16> tag;
  std::array<uint8_t, 32> identity;  // HMAC-SHA256 of the identity's bytes, with a secret of its own: not the name
  Label label;
  uint64_t header_checksum;      // XXH3-64 of what is before
  std::array<uint8_t, 32> seal;  // HMAC-SHA256 of what is before
};
inline constexpr Bytes kObjectHeaderBytes{192};
static_assert(sizeof(ObjectHeader) == kObjectHeaderBytes.value && std::is_trivially_copyable_v<ObjectHeader>);
static_assert(offsetof(ObjectHeader, magic) == 0 && offsetof(ObjectHeader, version) == 8);
static_assert(offsetof(ObjectHeader, cipher) == 12 && offsetof(ObjectHeader, zero) == 13);
static_assert(offsetof(ObjectHeader, epoch) == 16 && offsetof(ObjectHeader, body_bytes) == 24);
static_assert(offsetof(ObjectHeader, checksum) == 32 && offsetof(ObjectHeader, nonce) == 40);
static_assert(offsetof(ObjectHeader, zero_too) == 52 && offsetof(ObjectHeader, tag) == 56);
static_assert(offsetof(ObjectHeader, identity) == 72 && offsetof(ObjectHeader, label) == 104);
static_assert(offsetof(ObjectHeader, header_checksum) == 152 && offsetof(ObjectHeader, seal) == 160);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_OBJECT_HEADER_H_
