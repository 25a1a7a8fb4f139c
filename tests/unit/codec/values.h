#ifndef KVIST_TESTS_UNIT_CODEC_VALUES_H_
#define KVIST_TESTS_UNIT_CODEC_VALUES_H_

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "storage/codec/codec.h"
#include "storage/codec/floats.h"

// Shards for the tests of the codecs.
namespace kvist::codec {

using Payload = std::vector<std::byte>;

inline double ValueAt(Element element, const Payload& payload, uint64_t i) {
  uint16_t bits = 0;
  std::memcpy(&bits, payload.data() + 2 * i, sizeof bits);
  return element == Element::kBf16 ? Bf16::ToFloat(bits) : Fp16::ToFloat(bits);
}
inline void PutBits(Payload* payload, uint64_t i, uint16_t bits) {
  std::memcpy(payload->data() + 2 * i, &bits, sizeof bits);
}
inline void PutValue(Element element, Payload* payload, uint64_t i, float value) {
  PutBits(payload, i, element == Element::kBf16 ? Bf16::FromFloat(value) : Fp16::FromFloat(value));
}

// Any bits at all: infinities, NaNs, denormals.
inline Payload AnyBytes(const Shape& shape, std::mt19937_64* random) {
  Payload payload(shape.bytes().value);
  for (std::byte& b : payload) b = static_cast<std::byte>((*random)());
  return payload;
}

// N(0, s) with an s for each channel of each matrix, log-normal(0, 1); AR(1) of 0.9 along the tokens in keys. `size` scales all.
inline Payload Gaussian(const Shape& shape, std::mt19937_64* random, double size = 1) {
  std::normal_distribution<double> normal;
  Payload payload(shape.bytes().value);
  std::vector<double> scale(shape.channels), last(shape.channels);
  uint64_t at = 0;
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    for (double& s : scale) s = std::exp(normal(*random));
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      for (uint32_t c = 0; c < shape.channels; ++c, ++at) {
        const double fresh = normal(*random);
        last[c] = t > 0 && shape.IsKey(matrix) ? 0.9 * last[c] + std::sqrt(0.19) * fresh : fresh;
        PutValue(shape.element, &payload, at, static_cast<float>(size * scale[c] * last[c]));
      }
    }
  }
  return payload;
}

// As Gaussian, but what isn't a key is a token's: the same for the same token in the first layer, up to noise of a fifth behind it.
inline Payload OfTokens(const Shape& shape, std::span<const uint32_t> tokens, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  Payload payload = Gaussian(shape, random);
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    if (shape.IsKey(matrix)) continue;
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      std::mt19937_64 of_token(tokens[t] + (uint64_t{shape.LayerOf(matrix)} << 32));
      std::normal_distribution<float> values;
      for (uint32_t c = 0; c < shape.channels; ++c) {
        const float noise = shape.LayerOf(matrix) == 0 ? 0.0F : 0.2F * normal(*random);
        PutValue(shape.element, &payload, matrix * shape.matrix_values() + uint64_t{t} * shape.channels + c,
                 values(of_token) + noise);
      }
    }
  }
  return payload;
}

inline Payload EncodeAll(Method method, const Parameters& parameters, const Shape& shape, const Payload& payload) {
  Payload out(EncodedBound(method, parameters, shape)->value);
  const auto encoded = Encode(method, parameters, shape, payload, out);
  REQUIRE(encoded.ok());
  REQUIRE(encoded->bytes.value <= out.size());
  out.resize(encoded->bytes.value);
  out.shrink_to_fit();  // so that AddressSanitizer sees who reads behind it
  return out;
}
inline Payload EncodeAll(Method method, const Shape& shape, const Payload& payload) {
  return EncodeAll(method, Parameters::Of(method), shape, payload);
}
inline Payload DecodeAll(const Shape& shape, const Payload& encoded) {
  Payload out(shape.bytes().value, std::byte{0xee});
  const absl::Status status = Decode(encoded, shape, out);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return out;
}

// Small ones: no more than 6,000 values.
inline Shape RandomShape(Element element, std::mt19937_64* random) {
  const auto upto = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n) + 1; };
  Shape shape{.element = element, .pages = upto(2), .layers = upto(4), .segments = upto(3), .tiles = upto(2)};
  shape.keys = upto(shape.segments + 1) - 1;
  shape.tokens = (*random)() % 4 == 0 ? upto(150) : upto(20);
  shape.channels = shape.tokens > 20 ? upto(12) : upto(70);
  return shape;
}

inline std::vector<Method> LossyMethods() { return {Method::kInt8, Method::kInt4, Method::kFp8, Method::kStrongest}; }

}  // namespace kvist::codec

#endif  // KVIST_TESTS_UNIT_CODEC_VALUES_H_
