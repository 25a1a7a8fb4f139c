#include "storage/codec/matrix_coder.h"

#include "storage/base/check.h"
#include "storage/codec/anchored.h"
#include "storage/codec/int4.h"
#include "storage/codec/lossless.h"
#include "storage/codec/opaque.h"
#include "storage/codec/scaled.h"

namespace kvist::codec {

std::unique_ptr<MatrixCoder> MatrixCoder::Create(Method method, const Shape& shape, const Parameters& parameters,
                                                 const Kernels* kernels) {
  if (shape.element == Element::kOpaque) {
    KVIST_CHECK(method == Method::kLossless);
    return std::make_unique<OpaqueCoder>(shape);
  }
  switch (method) {
    case Method::kLossless: return std::make_unique<LosslessCoder>(shape, *kernels);
    case Method::kInt8:
    case Method::kFp8: return std::make_unique<ScaledCoder>(method, shape, parameters.group, *kernels);
    case Method::kInt4: return std::make_unique<Int4Coder>(shape, parameters, *kernels);
    case Method::kStrongest: return std::make_unique<AnchoredCoder>(shape, parameters, *kernels);
  }
  KVIST_CHECK(false);
  return nullptr;
}

size_t MatrixCoder::Bound(Method method, const Shape& shape, const Parameters& parameters) {
  if (shape.element == Element::kOpaque) return OpaqueCoder::Bound(shape);
  switch (method) {
    case Method::kLossless: return LosslessCoder::Bound(shape);
    case Method::kInt8:
    case Method::kFp8: return ScaledCoder::Bound(shape, parameters.group);
    case Method::kInt4: return Int4Coder::Bound(shape, parameters);
    case Method::kStrongest: return AnchoredCoder::Bound(shape);
  }
  KVIST_CHECK(false);
  return 0;
}

}  // namespace kvist::codec
