#ifndef KVIST_STORAGE_CODEC_MATRIX_CODER_H_
#define KVIST_STORAGE_CODEC_MATRIX_CODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "storage/codec/kernels.h"
#include "storage/codec/method.h"
#include "storage/codec/shape.h"

namespace kvist::codec {

// Encodes the matrices of one shard, each into a part of its own, or decodes them. Has the scratch memory for one matrix.
//
// Threads: one at a time. What a matrix becomes follows from the payload, its number, the shape and the parameters alone.
class MatrixCoder {
 public:
  // The shape and the parameters are valid, and the method takes the element. `kernels`: of the element; not used for opaque bytes.
  static std::unique_ptr<MatrixCoder> Create(Method method, const Shape& shape, const Parameters& parameters,
                                             const Kernels* kernels);
  virtual ~MatrixCoder() = default;

  // The most bytes that a part can have; below 2^32.
  static size_t Bound(Method method, const Shape& shape, const Parameters& parameters);
  // Writes the part, at most Bound, and gives its length. `payload`: the shard's, all of it; finite when the method is lossy.
  virtual size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) = 0;
  // Fills the matrix; needs no other. False when the part is none that Encode could have written as far as this can be told: `values` hold anything then.
  // Whatever the part holds, nothing outside of it and of the matrix is touched.
  virtual bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) = 0;
};

// Values where they lie.
inline const RawValue* ValuesAt(const std::byte* bytes) { return reinterpret_cast<const RawValue*>(bytes); }
inline const RawValue* MatrixAt(const Shape& shape, std::span<const std::byte> payload, uint64_t matrix) {
  return ValuesAt(payload.data() + matrix * shape.matrix_bytes().value);
}
inline RawValue* ValuesAt(std::byte* bytes) { return reinterpret_cast<RawValue*>(bytes); }

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_MATRIX_CODER_H_
