#include "storage/codec/kernels.h"

#include "storage/base/check.h"
#include "storage/codec/kernel_bodies.h"

namespace kvist::codec {
namespace {

// Wrappers for one instruction set, into which the bodies are inlined. No set with fused multiply-add is named, and the target is compiled
// with -ffp-contract=off: a fused one rounds otherwise.
#define KVIST_CODEC_VARIANT(Variant, label, TARGET)                                                                         \
  template <class Float>                                                                                                    \
  struct Variant {                                                                                                          \
    TARGET static uint16_t MaxMagnitude(const RawValue* row, size_t n) { return bodies::MaxMagnitude<Float>(row, n); }      \
    TARGET static void MaxMagnitudes(const RawValue* row, size_t n, uint16_t* max) {                                        \
      bodies::MaxMagnitudes<Float>(row, n, max);                                                                            \
    }                                                                                                                       \
    TARGET static void MaxExponents(const RawValue* row, size_t n, uint8_t* max) {                                          \
      bodies::MaxExponents<Float>(row, n, max);                                                                             \
    }                                                                                                                       \
    TARGET static void AddSquares(const RawValue* row, size_t n, float* sums) { bodies::AddSquares<Float>(row, n, sums); }  \
    TARGET static void Split(const RawValue* row, const uint8_t* bases, size_t n, uint8_t* coded, uint8_t* kept) {          \
      bodies::Split<Float>(row, bases, n, coded, kept);                                                                     \
    }                                                                                                                       \
    TARGET static void Join(const uint8_t* coded, const uint8_t* kept, const uint8_t* bases, size_t n, RawValue* row) {     \
      bodies::Join<Float>(coded, kept, bases, n, row);                                                                      \
    }                                                                                                                       \
    TARGET static void ToInt8(const RawValue* row, const float* inverses, size_t n, uint8_t* codes) {                       \
      bodies::ToInt8<Float>(row, inverses, n, codes);                                                                       \
    }                                                                                                                       \
    TARGET static void FromInt8(const uint8_t* codes, const float* steps, size_t n, RawValue* row) {                        \
      bodies::FromInt8<Float>(codes, steps, n, row);                                                                        \
    }                                                                                                                       \
    TARGET static void FromEvenInt8(const uint8_t* codes, float step, size_t n, RawValue* row) {                            \
      bodies::FromEvenInt8<Float>(codes, step, n, row);                                                                     \
    }                                                                                                                       \
    TARGET static void FromAnyInt8(const uint8_t* codes, const float* steps, size_t n, RawValue* row) {                     \
      bodies::FromAnyInt8<Float>(codes, steps, n, row);                                                                     \
    }                                                                                                                       \
    TARGET static void ToFp8(const RawValue* row, const float* inverses, size_t n, uint8_t* codes) {                        \
      bodies::ToFp8<Float>(row, inverses, n, codes);                                                                        \
    }                                                                                                                       \
    TARGET static void FromFp8(const uint8_t* codes, const float* steps, size_t n, RawValue* row) {                         \
      bodies::FromFp8<Float>(codes, steps, n, row);                                                                         \
    }                                                                                                                       \
    TARGET static void FromEvenFp8(const uint8_t* codes, float step, size_t n, RawValue* row) {                             \
      bodies::FromEvenFp8<Float>(codes, step, n, row);                                                                      \
    }                                                                                                                       \
    TARGET static void ToInt4(const RawValue* row, const float* inverses, const int8_t* zeros, size_t n, uint8_t* packed) { \
      bodies::ToInt4<Float>(row, inverses, zeros, n, packed);                                                               \
    }                                                                                                                       \
    TARGET static void FromInt4(const uint8_t* packed, const float* steps, const int8_t* zeros, size_t n, RawValue* row) {  \
      bodies::FromInt4<Float>(packed, steps, zeros, n, row);                                                                \
    }                                                                                                                       \
    static Kernels All() {                                                                                                  \
      return {label,    MaxMagnitude, MaxMagnitudes, MaxExponents, AddSquares, Split,       Join,   ToInt8,                 \
              FromInt8, FromEvenInt8, FromAnyInt8,   ToFp8,        FromFp8,    FromEvenFp8, ToInt4, FromInt4};              \
    }                                                                                                                       \
  }

KVIST_CODEC_VARIANT(Avx512, "avx512", __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))));
KVIST_CODEC_VARIANT(Avx2, "avx2", __attribute__((target("avx2"))));
KVIST_CODEC_VARIANT(Baseline, "baseline", );
#undef KVIST_CODEC_VARIANT

template <class Float>
std::vector<Kernels> Supported() {
  std::vector<Kernels> variants;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    variants.push_back(Avx512<Float>::All());
  if (__builtin_cpu_supports("avx2")) variants.push_back(Avx2<Float>::All());
  variants.push_back(Baseline<Float>::All());
  return variants;
}

}  // namespace

std::vector<Kernels> SupportedKernels(Element element) {
  KVIST_CHECK(element != Element::kOpaque);
  return element == Element::kBf16 ? Supported<Bf16>() : Supported<Fp16>();
}

const Kernels& KernelsFor(Element element) {
  KVIST_CHECK(element != Element::kOpaque);
  static const Kernels bf16 = Supported<Bf16>().front();
  static const Kernels fp16 = Supported<Fp16>().front();
  return element == Element::kBf16 ? bf16 : fp16;
}

}  // namespace kvist::codec
