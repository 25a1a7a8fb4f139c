#ifndef KVIST_STORAGE_CODEC_FLOATS_H_
#define KVIST_STORAGE_CODEC_FLOATS_H_

#include <cstdint>

// The 16-bit and 8-bit floats of KV caches to and from float, in integers and plain arithmetic: the same bits on every machine and with
// every instruction set, and loops over them vectorise. Rounding is to the nearest, ties to even,
// in Bf16 away from 0 (two instructions less). What is too large becomes the largest finite value: FromFloat gives no infinity or NaN.
// FromBounded leaves that out, for what can't round to more than kMax.
namespace kvist::codec {

#define KVIST_CODEC_INLINE inline __attribute__((always_inline))

// A value in bytes that somebody else laid out: any alignment, any type beside it.
typedef uint16_t RawValue __attribute__((may_alias, aligned(1)));

KVIST_CODEC_INLINE uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
KVIST_CODEC_INLINE float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
KVIST_CODEC_INLINE uint32_t AtMost(uint32_t value, uint32_t max) { return value < max ? value : max; }

// `Split` and `Join`: a value as what lossless codes (its exponent, from `base`, the largest of its channel, downwards) and what it keeps.
struct Bf16 {
  static constexpr uint16_t kInfinity = 0x7f80;  // and NaNs above, without the sign
  static constexpr float kMax = 3.38953139e38F;

  static KVIST_CODEC_INLINE float ToFloat(uint16_t value) { return FloatOf(static_cast<uint32_t>(value) << 16); }
  static KVIST_CODEC_INLINE uint16_t FromBounded(float value) {
    return static_cast<uint16_t>((BitsOf(value) + 0x8000) >> 16);
  }
  static KVIST_CODEC_INLINE uint16_t FromFloat(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = AtMost(bits & 0x7fffffff, 0x7f7f0000);
    return static_cast<uint16_t>(((magnitude + 0x8000) >> 16) | ((bits >> 16) & 0x8000));
  }
  static KVIST_CODEC_INLINE uint8_t Exponent(uint16_t value) { return static_cast<uint8_t>(value >> 7); }
  static KVIST_CODEC_INLINE void Split(uint16_t value, uint8_t base, uint8_t* coded, uint8_t* kept) {
    *coded = static_cast<uint8_t>(base - Exponent(value));
    *kept = static_cast<uint8_t>(((value >> 8) & 0x80) | (value & 0x7f));
  }
  static KVIST_CODEC_INLINE uint16_t Join(uint8_t coded, uint8_t kept, uint8_t base) {
    const uint32_t exponent = static_cast<uint8_t>(base - coded);
    return static_cast<uint16_t>((static_cast<uint32_t>(kept & 0x80) << 8) | (exponent << 7) | (kept & 0x7f));
  }
};

struct Fp16 {
  static constexpr uint16_t kInfinity = 0x7c00;
  static constexpr float kMax = 65504.0F;

  static KVIST_CODEC_INLINE float ToFloat(uint16_t value) {
    // 2^112 moves the exponent's bias from 15 to 127, and makes denormals what they are.
    const float magnitude = FloatOf(static_cast<uint32_t>(value & 0x7fff) << 13) * 0x1p112F;
    return FloatOf(BitsOf(magnitude) | (static_cast<uint32_t>(value & 0x8000) << 16));
  }
  static KVIST_CODEC_INLINE uint16_t FromBounded(float value) { return FromFloat(value); }
  static KVIST_CODEC_INLINE uint16_t FromFloat(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = AtMost(bits & 0x7fffffff, BitsOf(kMax));
    const uint32_t normal = (magnitude - (112U << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t denormal = BitsOf(FloatOf(magnitude) + 0.5F) - BitsOf(0.5F);  // a float's last bit is 2^-24 there
    return static_cast<uint16_t>((magnitude < (113U << 23) ? denormal : normal) | ((bits >> 16) & 0x8000));
  }
  static KVIST_CODEC_INLINE uint8_t Exponent(uint16_t value) { return static_cast<uint8_t>((value >> 10) & 31); }
  // The sign and the first two bits of the mantissa fill the byte that is coded up.
  static KVIST_CODEC_INLINE void Split(uint16_t value, uint8_t base, uint8_t* coded, uint8_t* kept) {
    const uint32_t down = (base - Exponent(value)) & 31U;
    *coded = static_cast<uint8_t>((down << 3) | ((value >> 13) & 4U) | ((value >> 8) & 3U));
    *kept = static_cast<uint8_t>(value);
  }
  static KVIST_CODEC_INLINE uint16_t Join(uint8_t coded, uint8_t kept, uint8_t base) {
    const uint32_t exponent = (base - (coded >> 3)) & 31U;
    return static_cast<uint16_t>(((coded & 4U) << 13) | (exponent << 10) | ((coded & 3U) << 8) | kept);
  }
};

// e4m3 without infinities: 1.75 * 2^8 is the largest, 2^-9 the smallest, 0x7f would be a NaN and is never made.
struct E4m3 {
  static constexpr float kMax = 448.0F;

  static KVIST_CODEC_INLINE float ToFloat(uint8_t value) {
    const float magnitude = FloatOf(static_cast<uint32_t>(value & 0x7f) << 20) * 0x1p120F;
    return FloatOf(BitsOf(magnitude) | (static_cast<uint32_t>(value & 0x80) << 24));
  }
  static KVIST_CODEC_INLINE uint8_t FromFloat(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = AtMost(bits & 0x7fffffff, BitsOf(kMax));
    const uint32_t normal = (magnitude - (120U << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    const uint32_t denormal = BitsOf(FloatOf(magnitude) + 16384.0F) - BitsOf(16384.0F);  // a float's last bit is 2^-9 there
    return static_cast<uint8_t>((magnitude < (121U << 23) ? denormal : normal) | ((bits >> 24) & 0x80));
  }
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_FLOATS_H_
