#ifndef KVIST_STORAGE_CODEC_LOSSLESS_H_
#define KVIST_STORAGE_CODEC_LOSSLESS_H_

#include <vector>

#include "storage/codec/entropy.h"
#include "storage/codec/matrix_coder.h"

namespace kvist::codec {

// bf16 and fp16, bit for bit, whatever they are: infinities, NaNs with their payloads, denormals, both zeros.
//
//   | LosslessPart 8 B | bases [channels], when there are any | coded | kept |
//
// A value is two bytes (floats.h, Split). `coded` has its exponent, counted from its channel's largest downwards: of values that are distributed
//   alike in channels of different size it has about 2.6 bits. `kept`, the rest, is as good as random and stays as it is, unless a sample
//   of it says otherwise.
class LosslessCoder final : public MatrixCoder {
 public:
  LosslessCoder(const Shape& shape, const Kernels& kernels);
  static size_t Bound(const Shape& shape);
  size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) override;
  bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) override;

 private:
  const Kernels& kernels_;
  const Shape shape_;
  const size_t tokens_;
  const size_t channels_;
  const bool modelled_;  // whether channels have a base: not where so few tokens share it that it costs more than it saves
  std::vector<uint8_t> bases_;
  std::vector<uint8_t> coded_;
  std::vector<uint8_t> kept_;
  Compressor compressor_{Compressor::How::kHuffman};
  Compressor repeats_{Compressor::How::kRepeats};
  Decompressor decompressor_;
};

struct LosslessPart {
  // As many as there are values: as they are; else compressed. `kept` has all that is behind them, in the same way
  uint32_t coded_bytes;
  uint32_t reserved;  // zero
};
static_assert(sizeof(LosslessPart) == 8);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_LOSSLESS_H_
