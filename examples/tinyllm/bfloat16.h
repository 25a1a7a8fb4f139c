#ifndef KVIST_EXAMPLES_TINYLLM_BFLOAT16_H_
#define KVIST_EXAMPLES_TINYLLM_BFLOAT16_H_

#include <bit>
#include <cstdint>

namespace tinyllm {

// The upper half of a float.
using Bf16 = uint16_t;

// Rounds to nearest, ties to even. Finite numbers only.
inline Bf16 ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<Bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(Bf16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_BFLOAT16_H_
