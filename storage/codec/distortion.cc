#include "storage/codec/distortion.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "storage/base/check.h"
#include "storage/codec/floats.h"
#include "storage/codec/matrix_coder.h"

namespace kvist::codec {
namespace {

struct Squares {
  double differences = 0;
  double values = 0;
  double Relative() const {
    if (differences == 0) return 0;
    return values > 0 ? std::sqrt(differences / values) : std::numeric_limits<double>::infinity();
  }
};

template <class Float>
void AddMatrix(const RawValue* original, const RawValue* decoded, uint64_t count, Squares* squares) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint16_t was = original[i], is = decoded[i];
    const bool finite = std::max(was & 0x7fff, is & 0x7fff) < Float::kInfinity;
    if (!finite && was != is) squares->differences = std::numeric_limits<double>::infinity();
    if (!finite) continue;
    const double value = Float::ToFloat(was);
    const double difference = Float::ToFloat(is) - value;
    squares->values += value * value;
    squares->differences += difference * difference;
  }
}

}  // namespace

Distortion Measure(const Shape& shape, std::span<const std::byte> original, std::span<const std::byte> decoded) {
  KVIST_CHECK(shape.element != Element::kOpaque);
  KVIST_CHECK(original.size() == shape.bytes().value && decoded.size() == original.size());
  std::vector<Squares> layers(shape.layers);
  const uint64_t count = shape.matrix_values();
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    const RawValue* const was = ValuesAt(original.data()) + matrix * count;
    const RawValue* const is = ValuesAt(decoded.data()) + matrix * count;
    Squares* const squares = &layers[shape.LayerOf(matrix)];
    shape.element == Element::kBf16 ? AddMatrix<Bf16>(was, is, count, squares) : AddMatrix<Fp16>(was, is, count, squares);
  }
  Distortion distortion;
  Squares all;
  for (const Squares& layer : layers) {
    all.differences += layer.differences;
    all.values += layer.values;
    distortion.worst_layer = std::max(distortion.worst_layer, layer.Relative());
  }
  distortion.relative = all.Relative();
  return distortion;
}

}  // namespace kvist::codec
