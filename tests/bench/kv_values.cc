#include "tests/bench/kv_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::bench {
namespace {

codec::Shape ShapeOf(const KvSizes& sizes) {
  return {.element = codec::Element::kBf16,
          .layers = sizes.layers,
          .segments = 2,
          .keys = 1,
          .tokens = sizes.tokens,
          .channels = sizes.heads * sizes.head_dim};
}

uint16_t ToBf16(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double FromBf16(const std::byte* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// One head's keys and values of one layer, [token][head_dim].
struct Head {
  std::vector<double> keys, values;
};

Head HeadOf(const KvValues& kv, std::span<const std::byte> payload, uint32_t layer, uint32_t head) {
  const uint64_t tokens = kv.shape.tokens, channels = kv.shape.channels;
  Head found;
  for (uint32_t segment = 0; segment < 2; ++segment) {
    std::vector<double>& to = segment == 0 ? found.keys : found.values;
    for (uint64_t t = 0; t < tokens; ++t) {
      const uint64_t row = ((uint64_t{layer} * 2 + segment) * tokens + t) * channels + uint64_t{head} * kv.head_dim;
      for (uint64_t c = 0; c < kv.head_dim; ++c) to.push_back(FromBf16(payload.data() + 2 * (row + c)));
    }
  }
  return found;
}

std::vector<double> Attend(const Head& head, const std::vector<double>& query) {
  const size_t dim = query.size(), tokens = head.keys.size() / dim;
  std::vector<double> weights(tokens), out(dim);
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < dim; ++c) weights[t] += query[c] * head.keys[t * dim + c];
    weights[t] /= std::sqrt(static_cast<double>(dim));
    largest = std::max(largest, weights[t]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < dim; ++c) out[c] += weights[t] / sum * head.values[t * dim + c];
  }
  return out;
}

}  // namespace

KvValues MakeKvValues(const KvSizes& sizes, uint64_t seed) {
  constexpr double kCorrelation = 0.9;
  KvValues made{ShapeOf(sizes), sizes.heads, sizes.head_dim, {}};
  made.payload.resize(made.shape.bytes().value);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> scale(made.shape.channels), before(made.shape.channels);
  std::byte* out = made.payload.data();
  for (uint64_t matrix = 0; matrix < made.shape.matrices(); ++matrix) {
    const bool key = made.shape.IsKey(matrix);
    for (double& s : scale) s = std::exp(normal(random));
    for (uint32_t t = 0; t < sizes.tokens; ++t) {
      for (size_t c = 0; c < scale.size(); ++c, out += 2) {
        const double fresh = normal(random);
        const bool follows = key && t > 0;
        before[c] = follows ? kCorrelation * before[c] + std::sqrt(1 - kCorrelation * kCorrelation) * fresh : fresh;
        const uint16_t bits = ToBf16(scale[c] * before[c]);
        std::memcpy(out, &bits, sizeof bits);
      }
    }
  }
  return made;
}

absl::StatusOr<KvValues> ReadKvValues(const std::string& path, const KvSizes& sizes) {
  if (uint64_t{sizes.heads} * sizes.head_dim > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError(absl::StrCat("--kv: --heads ", sizes.heads, " of --head-dim ", sizes.head_dim,
                                                   " make more channels than 32 bits count"));
  KvValues read{ShapeOf(sizes), sizes.heads, sizes.head_dim, {}};
  KVIST_RETURN_IF_ERROR(read.shape.Validate());
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::UnavailableError(absl::StrCat("--kv: ", path, " can't be opened"));
  const auto size = static_cast<uint64_t>(file.tellg());
  if (size != read.shape.bytes().value)
    return absl::InvalidArgumentError(absl::StrCat("--kv: ", path, " has ", size, " bytes; --layers ", sizes.layers,
                                                   ", --tokens ", sizes.tokens, ", --heads ", sizes.heads,
                                                   " and --head-dim ", sizes.head_dim, " make ", read.shape.bytes().value));
  read.payload.resize(size);
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(read.payload.data()), static_cast<std::streamsize>(size)))
    return absl::UnavailableError(absl::StrCat("--kv: ", path, " can't be read"));
  return read;
}

double AttentionError(const KvValues& values, std::span<const std::byte> decoded, uint32_t queries) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  double differences = 0, squares = 0;
  std::vector<double> query(values.head_dim);
  for (uint32_t layer = 0; layer < values.shape.layers; ++layer) {
    for (uint32_t number = 0; number < values.heads; ++number) {
      const Head was = HeadOf(values, values.payload, layer, number), is = HeadOf(values, decoded, layer, number);
      for (uint32_t i = 0; i < queries; ++i) {
        for (double& q : query) q = normal(random);
        const std::vector<double> right = Attend(was, query), found = Attend(is, query);
        for (size_t c = 0; c < right.size(); ++c) {
          differences += (found[c] - right[c]) * (found[c] - right[c]);
          squares += right[c] * right[c];
        }
      }
    }
  }
  return squares > 0 ? std::sqrt(differences / squares) : 0;
}

}  // namespace kvist::bench
