#include "storage/codec/distortion.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

TEST_CASE("Measure gives the norm of the difference over the norm of the values") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 1, .tokens = 1, .channels = 2};
  Payload was(shape.bytes().value);
  for (uint64_t i = 0; i < 4; ++i) PutValue(shape.element, &was, i, i < 2 ? 3.0F : 4.0F);
  Payload is = was;
  PutValue(shape.element, &is, 3, 5.0F);
  const Distortion found = Measure(shape, was, is);
  CHECK(found.relative == Approx(1 / std::sqrt(50.0)));
  CHECK(found.worst_layer == Approx(1 / std::sqrt(32.0)));
  CHECK(Measure(shape, was, was).relative == 0);
}

TEST_CASE("Measure puts pages' matrices into their layers") {
  const Shape shape{.element = Element::kFp16, .pages = 2, .layers = 2, .tokens = 1, .channels = 1};
  Payload was(shape.bytes().value);
  for (uint64_t i = 0; i < 4; ++i) PutValue(shape.element, &was, i, 1.0F);
  Payload is = was;
  PutValue(shape.element, &is, 1, 2.0F);
  PutValue(shape.element, &is, 3, 2.0F);
  CHECK(Measure(shape, was, is).worst_layer == Approx(1));
  CHECK(Measure(shape, was, is).relative == Approx(std::sqrt(0.5)));
}

TEST_CASE("Measure is infinite when a value isn't finite any more, or nothing becomes something") {
  const Shape shape{.element = Element::kBf16, .tokens = 1, .channels = 2};
  Payload was(shape.bytes().value), is(shape.bytes().value);
  PutBits(&was, 0, Bf16::kInfinity);
  CHECK(std::isinf(Measure(shape, was, is).relative));
  CHECK(Measure(shape, was, was).relative == 0);
  PutBits(&was, 0, 0);
  PutValue(shape.element, &is, 1, 1.0F);
  CHECK(std::isinf(Measure(shape, was, is).relative));
}

}  // namespace
}  // namespace kvist::codec
