#ifndef KVIST_STORAGE_CODEC_OPAQUE_H_
#define KVIST_STORAGE_CODEC_OPAQUE_H_

#include "storage/codec/entropy.h"
#include "storage/codec/matrix_coder.h"

namespace kvist::codec {

// Lossless, for bytes of which nothing is known. A part: zstd, or, when that isn't shorter, the matrix as it is.
class OpaqueCoder final : public MatrixCoder {
 public:
  explicit OpaqueCoder(const Shape& shape) : bytes_(shape.matrix_values()) {}
  static size_t Bound(const Shape& shape) { return shape.matrix_values(); }
  size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) override;
  bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) override;

 private:
  const size_t bytes_;
  Compressor compressor_{Compressor::How::kRepeats};
  Decompressor decompressor_;
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_OPAQUE_H_
