#include "storage/codec/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "storage/base/check.h"
#include "storage/codec/floats.h"
#include "storage/codec/matrix_coder.h"

namespace kvist::codec {
namespace {

// One head's keys or values: [token][channel].
struct HeadMatrix {
  uint32_t tokens = 0, channels = 0;
  std::vector<float> values;
  const float* row(uint32_t token) const { return values.data() + size_t{token} * channels; }
};

// Which columns of which matrix are a head's.
struct HeadPlace {
  uint64_t matrix;
  uint32_t first, channels;
};

void Read(const Shape& shape, std::span<const std::byte> payload, const HeadPlace& place, HeadMatrix* head) {
  head->tokens = shape.tokens;
  head->channels = place.channels;
  head->values.resize(size_t{shape.tokens} * place.channels);
  const RawValue* from = ValuesAt(payload.data()) + place.matrix * shape.matrix_values() + place.first;
  float* to = head->values.data();
  for (uint32_t t = 0; t < shape.tokens; ++t, from += shape.channels, to += place.channels) {
    for (uint32_t c = 0; c < place.channels; ++c)
      to[c] = shape.element == Element::kBf16 ? Bf16::ToFloat(from[c]) : Fp16::ToFloat(from[c]);
  }
}

void Attend(const HeadMatrix& keys, const HeadMatrix& values, const std::vector<float>& query, std::vector<double>* out) {
  std::vector<double> weights(keys.tokens);
  double largest = -std::numeric_limits<double>::infinity();
  for (uint32_t t = 0; t < keys.tokens; ++t) {
    const float* const row = keys.row(t);
    for (uint32_t c = 0; c < keys.channels; ++c) weights[t] += double{query[c]} * row[c];
    weights[t] /= std::sqrt(static_cast<double>(keys.channels));
    largest = std::max(largest, weights[t]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  out->assign(values.channels, 0);
  for (uint32_t t = 0; t < values.tokens; ++t) {
    const float* const row = values.row(t);
    const double weight = weights[t] / sum;
    for (uint32_t c = 0; c < values.channels; ++c) (*out)[c] += weight * row[c];
  }
}

}  // namespace

uint32_t LikelyHeadChannels(const Shape& shape) {
  for (uint32_t channels = 128; channels >= 16; channels /= 2) {
    if (shape.channels % channels == 0) return channels;
  }
  return shape.channels;
}

std::optional<double> AttentionError(const Shape& shape, std::span<const std::byte> original,
                                     std::span<const std::byte> decoded, const AttentionProbe& probe) {
  KVIST_CHECK(original.size() == shape.bytes().value && decoded.size() == original.size());
  if (shape.element == Element::kOpaque || shape.segments != 2 || shape.keys != 1) return std::nullopt;
  const uint32_t channels = probe.head_channels == 0 ? LikelyHeadChannels(shape) : probe.head_channels;
  KVIST_CHECK(shape.channels % channels == 0);
  const uint32_t in_tile = shape.channels / channels;
  const uint64_t heads = uint64_t{shape.tiles} * in_tile;
  const uint64_t asked = probe.heads == 0 ? heads : std::min<uint64_t>(probe.heads, heads);

  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::vector<float> query(channels);
  std::vector<double> was, is;
  HeadMatrix keys, values, decoded_keys, decoded_values;
  double differences = 0, squares = 0;
  const uint64_t layers = uint64_t{shape.pages} * shape.layers;
  for (uint64_t layer = 0; layer < layers; ++layer) {
    for (uint64_t i = 0; i < asked; ++i) {
      const uint64_t head = (i * heads / asked + (asked < heads ? layer : 0)) % heads;  // of a sample others in each layer
      const HeadPlace of_keys{layer * 2 * shape.tiles + head / in_tile, static_cast<uint32_t>(head % in_tile * channels),
                              channels};
      const HeadPlace of_values{of_keys.matrix + shape.tiles, of_keys.first, channels};
      Read(shape, original, of_keys, &keys);
      Read(shape, original, of_values, &values);
      Read(shape, decoded, of_keys, &decoded_keys);
      Read(shape, decoded, of_values, &decoded_values);
      for (uint32_t q = 0; q < probe.queries; ++q) {
        for (float& value : query) value = static_cast<float>(normal(random));
        Attend(keys, values, query, &was);
        Attend(decoded_keys, decoded_values, query, &is);
        for (uint32_t c = 0; c < channels; ++c) {
          differences += (is[c] - was[c]) * (is[c] - was[c]);
          squares += was[c] * was[c];
        }
      }
    }
  }
  if (differences == 0) return 0;
  const double error = std::sqrt(differences / squares);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace kvist::codec
