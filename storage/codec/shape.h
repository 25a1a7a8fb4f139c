#ifndef KVIST_STORAGE_CODEC_SHAPE_H_
#define KVIST_STORAGE_CODEC_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "storage/base/units.h"

namespace kvist::codec {

// What a shard's values are. kOpaque: bytes of which nothing is known (KV in fp8, packed states); only lossless takes them.
enum class Element : uint8_t { kOpaque = 0, kBf16 = 1, kFp16 = 2 };
constexpr uint64_t BytesOf(Element element) { return element == Element::kOpaque ? 1 : 2; }

// How a shard's payload lies: matrices of [token][channel], one after the other.
//
//   payload = [page][layer][segment][tile] matrices, a matrix = [token][channel] elements
//
//   layer-major slots             pages = 1, tokens = the chunk's
//   page-major slots              pages = the chunk's, tokens = a page's
//   a head's tokens together      tiles = pages * heads, tokens = a page's, channels = head_dim; else tiles = 1
//   K and V                       segments = 2, keys = 1: the first `keys` segments hold keys, the others don't
//   MLA, states                   segments = 1, keys = 0
//
// Lossy methods scale keys by the channel and all else by the token. Matrices of few tokens or channels cost more: each has scales of its own.
struct Shape {
  Element element = Element::kOpaque;
  uint32_t pages = 1;
  uint32_t layers = 1;
  uint32_t segments = 1;
  uint32_t keys = 0;
  uint32_t tiles = 1;
  uint32_t tokens = 1;
  uint32_t channels = 1;

  bool operator==(const Shape&) const = default;

  uint64_t matrices() const { return uint64_t{pages} * layers * segments * tiles; }
  uint64_t matrix_values() const { return uint64_t{tokens} * channels; }
  Bytes matrix_bytes() const { return Bytes{matrix_values() * BytesOf(element)}; }
  Bytes bytes() const { return matrix_bytes() * matrices(); }
  uint32_t LayerOf(uint64_t matrix) const { return static_cast<uint32_t>(matrix / (uint64_t{tiles} * segments) % layers); }
  bool IsKey(uint64_t matrix) const { return matrix / tiles % segments < keys; }

  // Errors: InvalidArgument  names what is zero or too large. What passes overflows nothing: the functions above may be called.
  absl::Status Validate() const;
};

// A part's length is 32 bits, so a matrix leaves room for what a method adds. Real ones have some MiB.
inline constexpr Bytes kMatrixBytesMax = GiB(1);
// The directory of so many matrices is 64 MiB. A chunk of 256 tokens in pages of 16, 128 layers, 2 segments, 64 heads has 262,144.
inline constexpr uint64_t kMatricesMax = uint64_t{1} << 22;
inline constexpr Bytes kShardBytesMax = GiB(64);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_SHAPE_H_
