#include "storage/codec/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

constexpr Shape kOneToken{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 1, .channels = 16};

TEST_CASE("AttentionError of one token is how far its values are off, whatever its keys are") {
  std::mt19937_64 random(1);
  const Payload was = Gaussian(kOneToken, &random);
  Payload keys = was, values = was;
  for (uint64_t c = 0; c < 16; ++c) PutValue(kOneToken.element, &keys, c, 7.0F);
  CHECK(AttentionError(kOneToken, was, keys, {}) == 0.0);
  double differences = 0, squares = 0;
  for (uint64_t i = 0; i < kOneToken.bytes().value / 2; ++i) {
    const bool key = kOneToken.IsKey(i / 16);
    const double value = ValueAt(kOneToken.element, was, i);
    if (key) continue;
    PutValue(kOneToken.element, &values, i, static_cast<float>(1.5 * value));
    const double off = ValueAt(kOneToken.element, values, i) - value;
    squares += value * value;
    differences += off * off;
  }
  CHECK(*AttentionError(kOneToken, was, values, {}) == Approx(std::sqrt(differences / squares)));
}

TEST_CASE("AttentionError sees a key that is off by what it weighs, in each way that heads lie") {
  // The same values as [token][head][channel], and as a tile a head.
  const Shape rows{.element = Element::kFp16, .layers = 3, .segments = 2, .keys = 1, .tokens = 8, .channels = 64};
  const Shape tiles{
      .element = Element::kFp16, .layers = 3, .segments = 2, .keys = 1, .tiles = 4, .tokens = 8, .channels = 16};
  std::mt19937_64 random(2);
  const Payload was = Gaussian(rows, &random);
  Payload is = was;
  for (uint64_t i = 0; i < rows.bytes().value / 2; i += 3)
    PutValue(rows.element, &is, i, static_cast<float>(1.1 * ValueAt(rows.element, was, i)));
  const auto by_tile = [&](const Payload& payload) {
    Payload tiled(payload.size());
    for (uint64_t i = 0; i < payload.size() / 2; ++i) {
      const uint64_t matrix = i / 512, token = i / 64 % 8, head = i / 16 % 4, channel = i % 16;
      std::memcpy(tiled.data() + 2 * (((matrix * 4 + head) * 8 + token) * 16 + channel), payload.data() + 2 * i, 2);
    }
    return tiled;
  };
  const double found = *AttentionError(rows, was, is, {.head_channels = 16});
  CHECK((found > 0.01 && found < 0.2));
  CHECK(AttentionError(tiles, by_tile(was), by_tile(is), {}) == found);
  // A part of the heads says about as much, and with as many as there are the same.
  CHECK(*AttentionError(rows, was, is, {.head_channels = 16, .heads = 1, .queries = 2}) == Approx(found).epsilon(0.9));
  CHECK(AttentionError(rows, was, is, {.head_channels = 16, .heads = 4}) == found);
}

TEST_CASE("AttentionError is infinite where it is no number any more, and nothing without keys and values") {
  std::mt19937_64 random(3);
  const Payload was = Gaussian(kOneToken, &random);
  Payload is = was;
  PutBits(&is, 16, Bf16::kInfinity);  // of the first layer's values
  CHECK(std::isinf(*AttentionError(kOneToken, was, is, {})));
  Shape latent = kOneToken;
  latent.segments = 1;
  latent.keys = 0;
  latent.tokens = 2;
  CHECK(AttentionError(latent, was, is, {}) == std::nullopt);
}

TEST_CASE("Heads are taken for 128 channels, or the largest power of two that divides them") {
  const auto likely = [](uint32_t channels) {
    return LikelyHeadChannels({.element = Element::kBf16, .channels = channels});
  };
  CHECK(likely(1024) == 128);
  CHECK(likely(64 * 7) == 64);
  CHECK(likely(80) == 16);
  CHECK(likely(24) == 24);
}

}  // namespace
}  // namespace kvist::codec
