#ifndef KVIST_TESTS_SUPPORT_CODEC_FORGERY_H_
#define KVIST_TESTS_SUPPORT_CODEC_FORGERY_H_

#include <cstddef>
#include <cstring>
#include <span>

#include "storage/base/xxh3.h"
#include "storage/codec/format.h"

namespace kvist::codec {

// Puts the checksums of an encoded shard right, as far as what its header and directory say lies within it: what was changed passes for
// what was written, so decoding has nothing but its own checks.
inline void ForgeChecksums(std::span<std::byte> encoded) {
  Header header{};
  if (encoded.size() < sizeof header) return;
  std::memcpy(&header, encoded.data(), sizeof header);
  const Shape shape{header.element, header.pages, header.layers, header.segments,
                    header.keys,    header.tiles, header.tokens, header.channels};
  if (shape.Validate().ok() && PartsAt(shape.matrices()) <= encoded.size()) {
    size_t at = PartsAt(shape.matrices());
    for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
      PartEntry entry{};
      std::byte* const place = encoded.data() + sizeof header + matrix * sizeof entry;
      std::memcpy(&entry, place, sizeof entry);
      if (entry.bytes > encoded.size() - at) break;
      entry.checksum = XXH3_64bits_withSeed(encoded.data() + at, entry.bytes, matrix);
      at += entry.bytes;
      std::memcpy(place, &entry, sizeof entry);
    }
    header.directory = XXH3_64bits(encoded.data() + sizeof header, shape.matrices() * sizeof(PartEntry));
  }
  header.checksum = XXH3_64bits(&header, offsetof(Header, checksum));
  std::memcpy(encoded.data(), &header, sizeof header);
}

}  // namespace kvist::codec

#endif  // KVIST_TESTS_SUPPORT_CODEC_FORGERY_H_
