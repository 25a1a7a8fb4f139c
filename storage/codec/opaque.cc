#include "storage/codec/opaque.h"

#include <cstring>

namespace kvist::codec {

size_t OpaqueCoder::Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) {
  const std::byte* const values = payload.data() + matrix * bytes_;
  const std::span<const uint8_t> input(reinterpret_cast<const uint8_t*>(values), bytes_);
  if (const auto length = compressor_.Compress(input, {part, bytes_})) return *length;
  std::memcpy(part, values, bytes_);
  return bytes_;
}

bool OpaqueCoder::Decode(uint64_t /*matrix*/, std::span<const uint8_t> part, std::byte* values) {
  if (part.size() < bytes_) return decompressor_.Decompress(part, {reinterpret_cast<uint8_t*>(values), bytes_});
  if (part.size() > bytes_) return false;
  std::memcpy(values, part.data(), bytes_);
  return true;
}

}  // namespace kvist::codec
