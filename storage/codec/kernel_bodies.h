#ifndef KVIST_STORAGE_CODEC_KERNEL_BODIES_H_
#define KVIST_STORAGE_CODEC_KERNEL_BODIES_H_

#include <cstddef>
#include <cstdint>

#include "storage/codec/floats.h"

// What the kernels do, once for all instruction sets: kernels.cc compiles it for each. Plain loops without calls or early ends, which
// compilers vectorise. No sums of floats across a row: their order would be the instruction set's.
namespace kvist::codec::bodies {

#define KVIST_CODEC_BODY \
  template <class Float> \
  static KVIST_CODEC_INLINE

// value * inverse, rounded to the nearest integer, ties to even: 1.5 * 2^23 has the integers as its last bits. Within +-2^22; beyond it is
// some number, without overflow of a signed one.
static KVIST_CODEC_INLINE int32_t Rounded(float value) {
  return static_cast<int32_t>(BitsOf(value + 12582912.0F) - 0x4b400000);
}

KVIST_CODEC_BODY uint16_t MaxMagnitude(const RawValue* __restrict row, size_t channels) {
  uint16_t max = 0;
  for (size_t c = 0; c < channels; ++c) {
    const uint16_t magnitude = row[c] & 0x7fff;
    max = magnitude > max ? magnitude : max;
  }
  return max;
}

KVIST_CODEC_BODY void MaxMagnitudes(const RawValue* __restrict row, size_t channels, uint16_t* __restrict max) {
  for (size_t c = 0; c < channels; ++c) {
    const uint16_t magnitude = row[c] & 0x7fff;
    max[c] = magnitude > max[c] ? magnitude : max[c];
  }
}

KVIST_CODEC_BODY void MaxExponents(const RawValue* __restrict row, size_t channels, uint8_t* __restrict max) {
  for (size_t c = 0; c < channels; ++c) {
    const uint8_t exponent = Float::Exponent(row[c]);
    max[c] = exponent > max[c] ? exponent : max[c];
  }
}

KVIST_CODEC_BODY void AddSquares(const RawValue* __restrict row, size_t channels, float* __restrict sums) {
  for (size_t c = 0; c < channels; ++c) {
    const float value = Float::ToFloat(row[c]);
    sums[c] = sums[c] + value * value;
  }
}

KVIST_CODEC_BODY void Split(const RawValue* __restrict row, const uint8_t* __restrict bases, size_t channels,
                            uint8_t* __restrict coded, uint8_t* __restrict kept) {
  for (size_t c = 0; c < channels; ++c) Float::Split(row[c], bases[c], &coded[c], &kept[c]);
}

KVIST_CODEC_BODY void Join(const uint8_t* __restrict coded, const uint8_t* __restrict kept, const uint8_t* __restrict bases,
                           size_t channels, RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::Join(coded[c], kept[c], bases[c]);
}

KVIST_CODEC_BODY void ToInt8(const RawValue* __restrict row, const float* __restrict inverses, size_t channels,
                             uint8_t* __restrict codes) {
  for (size_t c = 0; c < channels; ++c) codes[c] = static_cast<uint8_t>(Rounded(Float::ToFloat(row[c]) * inverses[c]));
}

static KVIST_CODEC_INLINE float FromByte(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }

KVIST_CODEC_BODY void FromInt8(const uint8_t* __restrict codes, const float* __restrict steps, size_t channels,
                               RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::FromBounded(FromByte(codes[c]) * steps[c]);
}

KVIST_CODEC_BODY void FromEvenInt8(const uint8_t* __restrict codes, float step, size_t channels, RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::FromBounded(FromByte(codes[c]) * step);
}

KVIST_CODEC_BODY void FromAnyInt8(const uint8_t* __restrict codes, const float* __restrict steps, size_t channels,
                                  RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::FromFloat(FromByte(codes[c]) * steps[c]);
}

KVIST_CODEC_BODY void ToFp8(const RawValue* __restrict row, const float* __restrict inverses, size_t channels,
                            uint8_t* __restrict codes) {
  for (size_t c = 0; c < channels; ++c) codes[c] = E4m3::FromFloat(Float::ToFloat(row[c]) * inverses[c]);
}

KVIST_CODEC_BODY void FromFp8(const uint8_t* __restrict codes, const float* __restrict steps, size_t channels,
                              RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::FromBounded(E4m3::ToFloat(codes[c]) * steps[c]);
}

KVIST_CODEC_BODY void FromEvenFp8(const uint8_t* __restrict codes, float step, size_t channels, RawValue* __restrict row) {
  for (size_t c = 0; c < channels; ++c) row[c] = Float::FromBounded(E4m3::ToFloat(codes[c]) * step);
}

// Brought between the codes before it is rounded, which gives the same as after: outliers that are kept exact are as far from their group's
// codes as can be. What is left is in the last bits.
KVIST_CODEC_BODY uint32_t Int4Code(uint16_t value, float inverse, int8_t zero) {
  const float wanted = Float::ToFloat(value) * inverse;
  const auto least = static_cast<float>(zero), most = static_cast<float>(zero + 15);
  const float above = wanted > least ? wanted : least;
  return (static_cast<uint32_t>(Rounded(above < most ? above : most)) - static_cast<uint32_t>(zero)) & 15;
}

KVIST_CODEC_BODY void ToInt4(const RawValue* __restrict row, const float* __restrict inverses,
                             const int8_t* __restrict zeros, size_t channels, uint8_t* __restrict packed) {
  const size_t low = (channels + 1) / 2, high = channels / 2;
  for (size_t i = 0; i < high; ++i) {
    packed[i] = static_cast<uint8_t>(Int4Code<Float>(row[i], inverses[i], zeros[i]) |
                                     (Int4Code<Float>(row[low + i], inverses[low + i], zeros[low + i]) << 4));
  }
  if (low != high) packed[high] = static_cast<uint8_t>(Int4Code<Float>(row[high], inverses[high], zeros[high]));
}

KVIST_CODEC_BODY void FromInt4(const uint8_t* __restrict packed, const float* __restrict steps,
                               const int8_t* __restrict zeros, size_t channels, RawValue* __restrict row) {
  const size_t low = (channels + 1) / 2, high = channels / 2;
  for (size_t i = 0; i < low; ++i) row[i] = Float::FromFloat(static_cast<float>((packed[i] & 15) + zeros[i]) * steps[i]);
  for (size_t i = 0; i < high; ++i) {
    row[low + i] = Float::FromFloat(static_cast<float>((packed[i] >> 4) + zeros[low + i]) * steps[low + i]);
  }
}

#undef KVIST_CODEC_BODY

}  // namespace kvist::codec::bodies

#endif  // KVIST_STORAGE_CODEC_KERNEL_BODIES_H_
