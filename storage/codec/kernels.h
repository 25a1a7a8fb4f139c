#ifndef KVIST_STORAGE_CODEC_KERNELS_H_
#define KVIST_STORAGE_CODEC_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "storage/codec/floats.h"
#include "storage/codec/shape.h"

namespace kvist::codec {

// The inner loops of the codecs: one row of a matrix at a time, [channels] of everything. Areas don't overlap.
//
// Variants: each loop is compiled for several instruction sets from one source (kernel_bodies.h), and gives the same bits by all of
//   them (kernels_test). The one that is used is chosen once, by what this CPU has.
// Threads: any.
struct Kernels {
  std::string_view name;  // "avx512", "avx2", "baseline"

  // The largest of the values without their signs, as bits: above Element::kInfinity's for NaNs.
  uint16_t (*max_magnitude)(const RawValue* row, size_t channels);
  // max[c] = the larger of it and this row's.
  void (*max_magnitudes)(const RawValue* row, size_t channels, uint16_t* max);
  void (*max_exponents)(const RawValue* row, size_t channels, uint8_t* max);
  void (*add_squares)(const RawValue* row, size_t channels, float* sums);

  // Lossless: Bf16::Split and Bf16::Join.
  void (*split)(const RawValue* row, const uint8_t* bases, size_t channels, uint8_t* coded, uint8_t* kept);
  void (*join)(const uint8_t* coded, const uint8_t* kept, const uint8_t* bases, size_t channels, RawValue* row);

  // code = value / step, rounded. Steps are such that no code leaves its range. from_int8 and from_fp8 are for codes by which no value
  // becomes too large for its element, `even` for a step that all channels share; from_any_int8 gives the largest value then.
  void (*to_int8)(const RawValue* row, const float* inverses, size_t channels, uint8_t* codes);
  void (*from_int8)(const uint8_t* codes, const float* steps, size_t channels, RawValue* row);
  void (*from_even_int8)(const uint8_t* codes, float step, size_t channels, RawValue* row);
  void (*from_any_int8)(const uint8_t* codes, const float* steps, size_t channels, RawValue* row);
  void (*to_fp8)(const RawValue* row, const float* inverses, size_t channels, uint8_t* codes);
  void (*from_fp8)(const uint8_t* codes, const float* steps, size_t channels, RawValue* row);
  void (*from_even_fp8)(const uint8_t* codes, float step, size_t channels, RawValue* row);

  // Four bits: value = (code + zero) * step, codes from 0 to 15: values beyond them, however far, get the nearest. Byte i has channel i below
  // and channel i + (channels + 1) / 2 above.
  void (*to_int4)(const RawValue* row, const float* inverses, const int8_t* zeros, size_t channels, uint8_t* packed);
  void (*from_int4)(const uint8_t* packed, const float* steps, const int8_t* zeros, size_t channels, RawValue* row);
};

// For bf16 or fp16. / All that this CPU can run, widest (the chosen one) first: for tests and benchmarks.
const Kernels& KernelsFor(Element element);
std::vector<Kernels> SupportedKernels(Element element);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_KERNELS_H_
