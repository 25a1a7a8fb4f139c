#ifndef KVIST_EXAMPLES_TINYLLM_VECTOR_H_
#define KVIST_EXAMPLES_TINYLLM_VECTOR_H_

#include <bit>
#include <cstdint>
#include <cstring>

// For the .cc files of this folder that are compiled for this machine; headers that others include must not depend on it.
//
// The machine's vectors, by GCC's vector extensions. Nothing here depends on a value's place in memory or in a batch: equal
// lanes get equal results, which is half of what makes runs comparable bit for bit (the other half is in gemm.h).
namespace tinyllm {

// Lanes of the widest vector this file is compiled for: 16 with AVX-512, 8 with AVX2.
inline constexpr int kLanes = __BIGGEST_ALIGNMENT__ / static_cast<int>(sizeof(float));

// Columns of a panel: two vectors side by side.
inline constexpr int kPanelColumns = 2 * kLanes;
// Rows of a register block. Its rows * 2 accumulators and 2 vectors of the panel must fit the registers: 32 with AVX-512,
// else 16.
inline constexpr int kBlockRows = kLanes == 16 ? 12 : 6;

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));
using IntVec = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vec Load(const float* at) {
  Vec v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
inline void Store(float* at, Vec v) { std::memcpy(at, &v, sizeof v); }
inline Vec Broadcast(float x) { return Vec{} + x; }
inline Vec Min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// Sum of the lanes, in the order of the lanes.
inline float Sum(Vec v) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// e^x for x <= 87, relative error below 2e-7; exactly 1 at 0 and exactly 0 below -87 (so that a masked score weighs
// nothing). Source: Cephes expf: x = n ln2 + r with ln2 in two parts, a polynomial of degree 6 in r, scaled by 2^n.
inline Vec Exp(Vec x) {
  const IntVec vanishes = x < -87.0f;
  x = vanishes ? Vec{} : x;
  const Vec magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * 1.44269504f + magic) - magic;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = Broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return vanishes ? Vec{} : p * std::bit_cast<Vec>(power);
}

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_VECTOR_H_
